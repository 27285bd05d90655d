import { Body, Controller, HttpCode, Module, Post } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { FastifyAdapter } from '@nestjs/platform-fastify';
import { openModel, port, type Reply, Row } from './model.js';

/** Nest without a serving: the same route runs the model once per request. */
const run = await openModel();

@Controller()
class PredictController {
  @Post('predict')
  @HttpCode(200)
  predict(@Body() row: Row): Promise<Reply> {
    return run(row);
  }
}

@Module({ controllers: [PredictController] })
class AppModule {}

const app = await NestFactory.create(AppModule, new FastifyAdapter(), { logger: ['error'] });
await app.listen(port, '127.0.0.1');

import { Body, Controller, HttpCode, Module, Post } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { FastifyAdapter } from '@nestjs/platform-fastify';
import { port, type Reply, Row } from './model.js';

/** Nest alone: reads the row, and answers without a model. */
@Controller()
class PredictController {
  @Post('predict')
  @HttpCode(200)
  async predict(@Body() { input }: Row): Promise<Reply> {
    return { index: Float32Array.from(input).length };
  }
}

@Module({ controllers: [PredictController] })
class AppModule {}

const app = await NestFactory.create(AppModule, new FastifyAdapter(), { logger: ['error'] });
await app.listen(port, '127.0.0.1');

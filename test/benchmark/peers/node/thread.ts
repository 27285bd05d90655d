import { resolve } from 'node:path';
import { Body, Controller, HttpCode, Module, Post } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { FastifyAdapter } from '@nestjs/platform-fastify';
import { Thread } from '../../contenders/thread.js';
import { digits } from '../../models/digits.js';
import { mlp } from '../../models/mlp.js';
import { file, indexOfLargest, port, type Reply, Row } from './model.js';

/**
 * The least that a thread can cost: the same route, with the bare worker thread of the benchmark
 * behind it. It runs one row after the other.
 */
const thread = await Thread.start([digits, mlp].find(({ path }) => resolve(path) === file)!);
let last: Promise<unknown> = Promise.resolve();

@Controller()
class PredictController {
  @Post('predict')
  @HttpCode(200)
  async predict(@Body() { input }: Row): Promise<Reply> {
    const output = last.then(() => thread.run(Float32Array.from(input)));
    last = output;
    return { index: indexOfLargest(await output) };
  }
}

@Module({ controllers: [PredictController] })
class AppModule {}

const app = await NestFactory.create(AppModule, new FastifyAdapter(), { logger: ['error'] });
await app.listen(port, '127.0.0.1');

import { Body, Controller, HttpCode, Module, Post } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { FastifyAdapter } from '@nestjs/platform-fastify';
import {
  defineServing,
  InjectServing,
  ServingModule,
  type ServingOf,
  type Tensor,
} from 'nestjs-serving';
import { file, largest, options, port, type Reply, Row, tensorOf } from './model.js';

const isolation = process.env['ISOLATION'] as 'thread' | 'none' | undefined;

/** All else is as by default: one partition, no window. */
const predictor = defineServing({
  name: 'predictor',
  model: { file, session: options, ...(isolation && { isolation }) },
  preprocess: (row: Row) => ({ batch: tensorOf(row) }),
  postprocess: (outputs: Record<string, Tensor>) => largest(Object.values(outputs)[0]!),
});

@Controller()
class PredictController {
  constructor(@InjectServing(predictor) private readonly serving: ServingOf<typeof predictor>) {}

  @Post('predict')
  @HttpCode(200)
  predict(@Body() row: Row): Promise<Reply> {
    return this.serving.batchedRun(row);
  }
}

@Module({
  imports: [ServingModule.forRoot({ servings: [predictor] })],
  controllers: [PredictController],
})
class AppModule {}

const app = await NestFactory.create(AppModule, new FastifyAdapter(), { logger: ['error'] });
app.enableShutdownHooks();
await app.listen(port, '127.0.0.1');

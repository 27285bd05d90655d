import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { FastifyAdapter } from '@nestjs/platform-fastify';
import { ServingModule } from 'nestjs-serving';
import { OpenAIModule } from 'nestjs-serving/openai';
import { textEmbedding } from 'nestjs-serving/tasks';
import { miniLm } from '../peers.js';

/** The files don't say how to pool. All else is as by default, but for `PARTITIONS`. */
const partitions = process.env['PARTITIONS'];
const embedder = textEmbedding({
  name: 'embedder',
  model: miniLm,
  pooling: 'mean',
  ...(partitions && { partitions: Number(partitions) }),
});

@Module({
  imports: [
    ServingModule.forRoot({ servings: [embedder] }),
    OpenAIModule.forRoot({ models: { embedder }, guards: [] }),
  ],
})
class AppModule {}

const app = await NestFactory.create(AppModule, new FastifyAdapter(), { logger: ['error'] });
app.enableShutdownHooks();
await app.listen(Number(process.env['PORT']), '127.0.0.1');

import type { INestApplication } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { FastifyAdapter, type NestFastifyApplication } from '@nestjs/platform-fastify';

export type Platform = 'express' | 'fastify';
type NestModule = Parameters<typeof NestFactory.create>[0];

/** An application without logs, which listens once it was configured. */
export async function listening(
  platform: Platform,
  module: NestModule,
  configure: (app: INestApplication) => void = () => {},
): Promise<INestApplication> {
  const options = { logger: false } as const;
  const app =
    platform === 'express'
      ? await NestFactory.create(module, options)
      : await NestFactory.create<NestFastifyApplication>(module, new FastifyAdapter(), options);
  configure(app);
  await app.listen(0, '127.0.0.1');
  return app;
}

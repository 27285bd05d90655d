import { monitorEventLoopDelay } from 'node:perf_hooks';
import type { Type } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { FastifyAdapter, type NestFastifyApplication } from '@nestjs/platform-fastify';
import { BINARY } from './binary.js';
import { BatchedModule } from './variants/batched.js';
import { PerRequestModule } from './variants/per-request.js';
import { PiscinaModule } from './variants/piscina.js';

export type Variant = 'batched' | 'run per request' | 'piscina';

const variants: Record<Variant, Type> = {
  batched: BatchedModule,
  'run per request': PerRequestModule,
  piscina: PiscinaModule,
};

/** One variant of the endpoint, in a process of its own that ends with its parent. */
const app = await NestFactory.create<NestFastifyApplication>(
  variants[process.argv[2] as Variant],
  new FastifyAdapter(),
  {
    logger: ['error', 'warn'],
  },
);
app.useBodyParser(BINARY);
await app.listen(0, '127.0.0.1');

const delay = monitorEventLoopDelay({ resolution: 1 });
delay.enable();

/**
 * Every message asks for the p99 of the event-loop delay, in milliseconds, since the message
 * before.
 */
process.on('message', () => {
  process.send?.(delay.percentile(99) / 1e6);
  delay.reset();
});
process.on('disconnect', () => void app.close());
process.send?.(new URL(await app.getUrl()).port);

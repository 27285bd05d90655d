import { monitorEventLoopDelay } from 'node:perf_hooks';
import type { Type } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { FastifyAdapter, type NestFastifyApplication } from '@nestjs/platform-fastify';
import { threadTime } from '../harness/thread-time.js';
import { BINARY } from './binary.js';

/** What the server did since the question before. */
export interface Usage {
  /** p99 of the event-loop delay, in milliseconds. */
  readonly delay: number;
  /** CPU time of the main thread, in microseconds. */
  readonly cpu: number;
}

export type Variant = keyof typeof variants;

/** Loaded one by one, so that a baseline has none of the package in its memory. */
const variants = {
  batched: async () => (await import('./variants/mlp/batched.js')).BatchedModule,
  'run per request': async () => (await import('./variants/mlp/per-request.js')).PerRequestModule,
  piscina: async () => (await import('./variants/mlp/piscina.js')).PiscinaModule,
  'digits: bare': async () => (await import('./variants/digits/bare.js')).BareModule,
  'digits: beside': async () => (await import('./variants/digits/beside.js')).BesideModule,
  'digits: call': async () => (await import('./variants/digits/call.js')).CallModule,
  'digits: board': async () => (await import('./variants/digits/board.js')).BoardModule,
  'digits: signal': async () => (await import('./variants/digits/signal.js')).SignalModule,
  'digits: batched': async () => (await import('./variants/digits/batched.js')).BatchedModule,
  'digits: run per request': async () =>
    (await import('./variants/digits/per-request.js')).PerRequestModule,
} satisfies Record<string, () => Promise<Type>>;

/** One variant of the endpoint, in a process of its own that ends with its parent. */
const app = await NestFactory.create<NestFastifyApplication>(
  await variants[process.argv[2] as Variant](),
  new FastifyAdapter(),
  {
    logger: ['error', 'warn'],
  },
);
app.useBodyParser(BINARY);
await app.listen(0, '127.0.0.1');

const delay = monitorEventLoopDelay({ resolution: 1 });
delay.enable();
let cpu = threadTime();

/** Every message asks for the usage since the message before. */
process.on('message', () => {
  const until = threadTime();
  process.send?.({ delay: delay.percentile(99) / 1e6, cpu: until - cpu } satisfies Usage);
  cpu = until;
  delay.reset();
});
process.on('disconnect', () => void app.close());
process.send?.(new URL(await app.getUrl()).port);

import { NestFactory } from '@nestjs/core';
import { requireRedis } from './redis.js';
import { WorkerModule } from './worker.module.js';

await requireRedis();
const worker = await NestFactory.createApplicationContext(WorkerModule);
worker.enableShutdownHooks();
for (const signal of ['SIGTERM', 'SIGINT'] as const) {
  // A killed worker loses nothing, so none waits longer than this, for example while Redis is down.
  process.once(signal, () => setTimeout(() => process.exit(1), 20_000).unref());
}
// A worker that the application has started ends with it, also if that was killed.
process.once('disconnect', () => process.kill(process.pid, 'SIGTERM'));
console.log(`The worker with process id ${process.pid} waits for jobs`);

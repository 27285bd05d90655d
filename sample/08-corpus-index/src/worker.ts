import { NestFactory } from '@nestjs/core';
import { requireRedis } from './redis.js';
import { WorkerModule } from './worker.module.js';

await requireRedis();
const worker = await NestFactory.createApplicationContext(WorkerModule);
worker.enableShutdownHooks();
// A worker that the application has started ends with it, also if that was killed.
process.once('disconnect', () => process.kill(process.pid, 'SIGTERM'));
console.log(`The worker with process id ${process.pid} waits for jobs`);

import { NestFactory } from '@nestjs/core';
import { fork } from 'node:child_process';
import { AppModule } from './app.module.js';
import { requireRedis } from './redis.js';

const port = process.env.PORT ?? 3000;
const workers = Number(process.env.WORKERS ?? 2);

await requireRedis();
const app = await NestFactory.create(AppModule);
app.enableShutdownHooks();
await app.listen(port);
for (let started = 0; started < workers; started++) {
  fork(new URL('worker.js', import.meta.url));
}
console.log(`Index the corpus at http://localhost:${port}`);

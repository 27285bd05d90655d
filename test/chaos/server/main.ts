import 'reflect-metadata';
import { writeSync } from 'node:fs';
import type { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import { type DynamicModule, Module } from '@nestjs/common';
import { HttpAdapterHost, NestFactory } from '@nestjs/core';
import { ExpressAdapter } from '@nestjs/platform-express';
import { FastifyAdapter } from '@nestjs/platform-fastify';
import { TerminusModule } from '@nestjs/terminus';
import { Transport } from '@nestjs/microservices';
import { ServingModule } from 'nestjs-serving';
import { ServingClusterModule } from 'nestjs-serving/distribution';
import { InferenceProtocolModule } from 'nestjs-serving/inference-protocol';
import { ServingHealthIndicator } from 'nestjs-serving/terminus';
import { AdminController, Counts } from './admin.js';
import { CallsController } from './calls.controller.js';
import { CodeInterceptor } from './code.interceptor.js';
import { HealthController } from './health.controller.js';
import type { Doors, LastWords, ServerOptions } from './options.js';
import { servingsOf } from './servings.js';

/** The application of a scenario, in a process of its own. It speaks in lines of JSON. */
const options = JSON.parse(process.argv[2] ?? '{}') as ServerOptions;
const { platform = 'express', ending = 'exit', doors } = options;

@Module({
  imports: [
    ServingModule.forRoot({ servings: servingsOf(options), requestContext: true }),
    TerminusModule,
    ...(doors ? modulesOf(doors) : []),
  ],
  providers: [Counts, ServingHealthIndicator],
  controllers: [CallsController, AdminController, HealthController],
})
class AppModule {}

const adapter =
  platform === 'express' ? new ExpressAdapter() : new FastifyAdapter({ return503OnClosing: false });
const app = await NestFactory.create(AppModule, adapter, { logger: ['error', 'warn'] });
app.useGlobalInterceptors(new CodeInterceptor(app.get(HttpAdapterHost)));
const counts = app.get(Counts);
app.use(({ method }: IncomingMessage, _: unknown, next: () => void) => {
  counts.accepted += method === 'POST' ? 1 : 0;
  next();
});
if (ending === 'exit') {
  app.enableShutdownHooks([], { useProcessExit: true });
} else {
  process.once('SIGTERM', () => void app.close());
}
process.once('exit', () => send({ accepted: counts.accepted } satisfies LastWords));
// Whoever has started it may be killed.
process.stdin.resume().once('end', () => process.kill(process.pid, 'SIGKILL'));
(process.stdin as Socket).unref();
await app.listen(0, '127.0.0.1');
send({ url: await app.getUrl() });

function modulesOf({ grpc, cluster, secret }: Doors): DynamicModule[] {
  const host = '127.0.0.1';
  return [
    InferenceProtocolModule.forRoot({ grpc: { host, port: grpc } }),
    ServingClusterModule.forRoot({
      transport: Transport.TCP,
      options: { host, port: cluster },
      secret,
    }),
  ];
}

function send(message: object): void {
  writeSync(1, `${JSON.stringify(message)}\n`);
}

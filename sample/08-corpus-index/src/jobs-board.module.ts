import { createBullBoard } from '@bull-board/api';
import { BullMQAdapter } from '@bull-board/api/bullMQAdapter';
import { ExpressAdapter } from '@bull-board/express';
import { BullModule, InjectQueue } from '@nestjs/bullmq';
import { type MiddlewareConsumer, Module, type NestModule } from '@nestjs/common';
import { ExecutionContextHost } from '@nestjs/core/helpers/execution-context-host.js';
import type { Queue } from 'bullmq';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { BoardGuard } from './board.guard.js';
import { chunkQueue } from './redis.js';

const path = '/boards/jobs';

/** The board of BullMQ. Its routes are Express middleware, for which Nest runs no guards. */
@Module({
  imports: [BullModule.registerQueue({ name: chunkQueue })],
  providers: [BoardGuard],
})
export class JobsBoardModule implements NestModule {
  constructor(
    @InjectQueue(chunkQueue) private readonly queue: Queue,
    private readonly guard: BoardGuard,
  ) {}

  configure(consumer: MiddlewareConsumer) {
    const signIn = (request: IncomingMessage, response: ServerResponse, next: () => void) => {
      this.guard.canActivate(new ExecutionContextHost([request, response]));
      next();
    };
    const serverAdapter = new ExpressAdapter().setBasePath(path);
    createBullBoard({
      // Pages of other sites could send changes with the operator's login.
      queues: [new BullMQAdapter(this.queue, { readOnlyMode: true })],
      serverAdapter,
    });
    consumer.apply(signIn, serverAdapter.getRouter()).forRoutes(path);
  }
}

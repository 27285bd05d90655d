import {
  type BeforeApplicationShutdown,
  Injectable,
  type OnApplicationShutdown,
} from '@nestjs/common';
import { HttpAdapterHost } from '@nestjs/core';
import type { Server } from 'node:http';
import { BatchedMethods } from './batched/batched-methods.js';
import { ServingClosedError } from './errors.js';
import { ServingRegistry } from './serving.registry.js';
import { LocalServing } from './serving/local-serving.js';

/** Milliseconds between two looks at the connections of the HTTP server. */
const INTERVAL = 100;

/**
 * Milliseconds after the server has stopped to listen in which its clients read on each connection
 * that an answer is the last.
 */
const TIME_TO_LEAVE = 500;

/** Milliseconds that clients have to read the answers that shutdown gave them at its limit. */
const TIME_TO_READ = 500;

/**
 * Lets `app.close()` resolve soon after the longest `shutdown` of the application's servings and
 * methods. Nest waits for all connections of its HTTP server. This has the server say that the next
 * answer on a connection is the last, then ends the connections that are idle, and after the limit
 * the others, too.
 */
@Injectable()
export class ServingShutdown implements BeforeApplicationShutdown, OnApplicationShutdown {
  private interval: NodeJS.Timeout | undefined;
  /** When the server was first seen not to listen any more. */
  private stoppedAt: number | undefined;

  constructor(
    private readonly host: HttpAdapterHost,
    private readonly registry: ServingRegistry,
    private readonly methods: BatchedMethods,
  ) {}

  beforeApplicationShutdown(): void {
    const servings = this.registry.started.filter((serving) => serving instanceof LocalServing);
    const limits = [
      ...this.methods.shutdownLimits,
      ...servings.map(({ shutdownLimit }) => shutdownLimit),
    ];
    if (limits.length > 0) {
      const end = performance.now() + Math.max(...limits);
      this.interval = setInterval(() => this.endConnections(end), INTERVAL);
    }
  }

  onApplicationShutdown(): void {
    clearInterval(this.interval);
  }

  private endConnections(end: number): void {
    const now = performance.now();
    if (now > end) {
      this.methods.end(
        new ServingClosedError('The application was closed before the call had ended'),
      );
    }
    const server = this.host.httpAdapter?.getHttpServer() as Partial<Server> | undefined;
    // While it listens, other hooks of the application let it serve.
    if (!server || server.listening) {
      return;
    }
    this.stoppedAt ??= now;
    server.maxRequestsPerSocket = 1;
    if (now > end + TIME_TO_READ) {
      server.closeAllConnections?.();
    } else if (now > this.stoppedAt + TIME_TO_LEAVE) {
      server.closeIdleConnections?.();
    }
  }
}

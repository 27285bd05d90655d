import {
  type BeforeApplicationShutdown,
  Global,
  Injectable,
  Logger,
  Module,
  type OnApplicationShutdown,
} from '@nestjs/common';
import { HttpAdapterHost, ModuleRef, ModulesContainer } from '@nestjs/core';
import type { Server } from 'node:http';
import { BatchedMethods } from './batched/batched-methods.js';
import { ServingClosedError } from '../core/errors.js';
import { ServingRegistry } from './serving.registry.js';

/** Milliseconds. */
const INTERVAL = 100;

/** Milliseconds of a shutdown that needs no words. */
const QUICK = 1000;

/** Milliseconds for an answer with `Connection: close`, once the server doesn't listen. */
const TIME_TO_LEAVE = 500;

/** Milliseconds for clients to read answers sent at the limit. */
const TIME_TO_READ = 500;

/**
 * Lets `app.close()` resolve soon after the longest `shutdown.timeout`. Nest waits for its HTTP
 * server's connections, so we make the next answer on each the last, then end idle ones, and all
 * others after the limit.
 */
@Injectable()
export class ServingShutdown implements BeforeApplicationShutdown, OnApplicationShutdown {
  private interval: NodeJS.Timeout | undefined;
  /** Time when the server was first seen not to listen. */
  private stoppedAt: number | undefined;
  private endedAt: number | undefined;
  private begin = 0;
  private hasSaid = false;
  private readonly logger = new Logger('Serving');

  constructor(
    private readonly host: HttpAdapterHost,
    private readonly registry: ServingRegistry,
    private readonly methods: BatchedMethods,
  ) {}

  beforeApplicationShutdown(): void {
    const limits = [
      ...this.methods.shutdownLimits,
      ...this.registry.started.flatMap(({ local }) => local?.shutdownLimit ?? []),
    ];
    if (limits.length > 0) {
      this.begin = performance.now();
      const end = this.begin + Math.max(...limits);
      this.interval = setInterval(() => this.endConnections(end), INTERVAL);
    }
  }

  onApplicationShutdown(): void {
    clearInterval(this.interval);
    if (this.hasSaid) {
      this.logger.log(`The calls have ended, after ${this.secondsAt(performance.now())} s`);
    }
  }

  private endConnections(end: number): void {
    const now = performance.now();
    if (now > this.begin + QUICK && !this.hasSaid) {
      this.hasSaid = true;
      const most = this.secondsAt(end);
      this.logger.log(
        `The application ends, and waits for calls that are under way: ${most} s at most`,
      );
    }
    if (now > end) {
      this.endedAt ??= now;
      this.methods.end(
        new ServingClosedError('The application was closed before the call had ended'),
      );
    }
    const server = this.host.httpAdapter?.getHttpServer() as Partial<Server> | undefined;
    // Other shutdown hooks may rely on it while it listens.
    if (!server || server.listening) {
      return;
    }
    this.stoppedAt ??= now;
    server.maxRequestsPerSocket = 1;
    if (now > (this.endedAt ?? now) + TIME_TO_READ) {
      server.closeAllConnections?.();
    } else if (now > this.stoppedAt + TIME_TO_LEAVE) {
      server.closeIdleConnections?.();
    }
  }

  /** Of the shutdown, at that time. */
  private secondsAt(time: number): string {
    return ((time - this.begin) / 1000).toFixed(1);
  }
}

/**
 * Closes all servings after every provider that may call them: queue workers, for example, finish
 * jobs in `onApplicationShutdown`. Nest ends modules by their distance from the root, and global
 * ones last; among these, this one is last.
 */
@Global()
@Module({})
export class ServingEndModule implements OnApplicationShutdown {
  constructor(
    private readonly moduleRef: ModuleRef,
    modules: ModulesContainer,
  ) {
    for (const module of modules.values()) {
      if (module.metatype === ServingEndModule) {
        module.distance = Infinity;
      }
    }
  }

  async onApplicationShutdown(): Promise<void> {
    const { started } = this.moduleRef.get(ServingRegistry, { strict: false });
    const methods = this.moduleRef.get(BatchedMethods, { strict: false });
    // Their calls in progress may call servings.
    await methods.close();
    await Promise.all(started.flatMap(({ local }) => local?.close() ?? []));
  }
}

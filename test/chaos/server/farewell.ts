// #region farewell
import type { Server } from 'node:http';
import { type BeforeApplicationShutdown, Injectable } from '@nestjs/common';
import { HttpAdapterHost } from '@nestjs/core';

const shutdown = Number(process.env['SHUTDOWN'] ?? 30_000); // ms, as of the servings

@Injectable()
export class Farewell implements BeforeApplicationShutdown {
  constructor(private readonly host: HttpAdapterHost) {}

  beforeApplicationShutdown(): void {
    const server: Server = this.host.httpAdapter.getHttpServer();
    server.maxRequestsPerSocket = 1; // the next answer on each connection says that it is the last
    setTimeout(() => server.closeAllConnections(), shutdown + 1000).unref(); // whoever has not read his answer by then does not read
  }
}
// #endregion

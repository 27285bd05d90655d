import { setTimeout } from 'node:timers/promises';
import { mlp } from '../models/mlp.js';
import { randomRows } from '../models/random.js';
import { BINARY, toBytes } from './binary.js';
import type { LoadRequest } from './load.js';
import type { LoadReport } from './load-report.js';
import { Process } from './process.js';
import type { Variant } from './server.js';

export type Generator = Process<LoadRequest, LoadReport>;

export interface Trial extends LoadReport {
  /** p99 of the server's event-loop delay under the load, in milliseconds. */
  readonly delay: number;
}

const body = toBytes(randomRows(1, mlp.rowShape).data);

/** A server with one variant of the endpoint, and what can be asked about it. */
export class Contender {
  private constructor(
    private readonly server: Process<'delay', number>,
    private readonly generator: Generator,
  ) {}

  static async start(variant: Variant, generator: Generator): Promise<Contender> {
    return new Contender(
      await Process.start(new URL('./server.js', import.meta.url), variant),
      generator,
    );
  }

  /** The reply to the one request that every load repeats. */
  async reply(): Promise<Float32Array> {
    const headers = { 'content-type': BINARY };
    const response = await fetch(`http://127.0.0.1:${this.port}`, {
      method: 'POST',
      headers,
      body,
    });
    return new Float32Array(await response.arrayBuffer());
  }

  async under(load: LoadRequest['load']): Promise<Trial> {
    await this.server.ask('delay');
    const report = await this.generator.ask({ port: this.port, body, load });
    return { ...report, delay: await this.server.ask('delay') };
  }

  /** p99 of the event-loop delay while nobody calls. */
  async idleDelay(seconds: number): Promise<number> {
    await this.server.ask('delay');
    await setTimeout(seconds * 1000);
    return this.server.ask('delay');
  }

  close(): Promise<void> {
    return this.server.close();
  }

  private get port(): number {
    return Number(this.server.greeting);
  }
}

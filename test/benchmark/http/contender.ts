import { setTimeout } from 'node:timers/promises';
import type { LoadRequest } from './load.js';
import type { LoadReport } from './load-report.js';
import type { Post } from './post.js';
import { Process } from './process.js';
import type { Usage, Variant } from './server.js';

export type Generator = Process<LoadRequest, LoadReport>;

export interface Trial extends LoadReport {
  /** p99 of the server's event-loop delay under the load, in milliseconds. */
  readonly delay: number;
  /** Requests answered a second of CPU time of the server's main thread. */
  readonly perCpuSecond: number;
}

export function startGenerator(): Promise<Generator> {
  return Process.start(new URL('./load.js', import.meta.url));
}

/** Until V8 has compiled the path of a request as well as it will. */
export async function warmUp(
  contenders: readonly Contender[],
  generator: Generator,
): Promise<void> {
  for (const contender of contenders) {
    await contender.under({ kind: 'closed', connections: 64, seconds: 2.5 }, generator);
  }
}

/** A server with one variant of the endpoint, and what can be asked about it. */
export class Contender {
  private constructor(
    private readonly server: Process<'usage', Usage>,
    private readonly post: Post,
  ) {}

  static async start(variant: Variant, post: Post): Promise<Contender> {
    return new Contender(
      await Process.start(new URL('./server.js', import.meta.url), variant),
      post,
    );
  }

  get pid(): number {
    return this.server.pid;
  }

  /** The body of the reply to the request, as it comes without any load. */
  async reply({ path, type, body }: Post = this.post): Promise<ArrayBuffer> {
    const response = await fetch(`http://127.0.0.1:${this.port}${path}`, {
      method: 'POST',
      headers: { 'content-type': type },
      body: Buffer.from(body),
    });
    if (!response.ok) {
      throw new Error(`${response.status} ${await response.text()}`);
    }
    return response.arrayBuffer();
  }

  /** The JSON that a path answers. */
  async get(path: string): Promise<unknown> {
    const response = await fetch(`http://127.0.0.1:${this.port}${path}`);
    if (!response.ok) {
      throw new Error(`${response.status} ${await response.text()}`);
    }
    return response.json();
  }

  async under(load: LoadRequest['load'], generator: Generator): Promise<Trial> {
    await this.server.ask('usage');
    const report = await generator.ask({ port: this.port, post: this.post, load });
    const { delay, cpu } = await this.server.ask('usage');
    return { ...report, delay, perCpuSecond: (report.requests / cpu) * 1e6 };
  }

  /** p99 of the event-loop delay while nobody calls. */
  async idleDelay(seconds: number): Promise<number> {
    await this.server.ask('usage');
    await setTimeout(seconds * 1000);
    return (await this.server.ask('usage')).delay;
  }

  close(): Promise<void> {
    return this.server.close();
  }

  private get port(): number {
    return Number(this.server.greeting);
  }
}

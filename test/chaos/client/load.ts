import type { Application } from './application.js';
import type { Call, MakeCall } from './calls.js';
import { HttpClient } from './http-client.js';
import { Tally } from './tally.js';

/**
 * Clients that each call again as soon as they have their answer, over connections that they keep.
 */
export class Load {
  readonly tally = new Tally();
  private readonly client: HttpClient;
  private readonly clients: readonly Promise<void>[];
  private readonly underWay = new Set<Promise<boolean>>();
  private isOver = false;

  constructor(application: Application, callers: readonly MakeCall[]) {
    this.client = new HttpClient(application.url, callers.length);
    this.clients = callers.map((makeCall) => this.keepCalling(makeCall));
  }

  /** Resolves when all calls that are under way now have ended. */
  async settled(): Promise<void> {
    await Promise.all(this.underWay);
  }

  /** Resolves when so many more calls have been answered. */
  answered(more: number): Promise<void> {
    return this.tally.answered(more);
  }

  /** Lets every client have his last answer. */
  async end(): Promise<Tally> {
    this.isOver = true;
    return this.ended();
  }

  /** Resolves when the clients call no more, for example because nobody listens any more. */
  async ended(): Promise<Tally> {
    await Promise.all(this.clients);
    this.client.close();
    return this.tally;
  }

  private async keepCalling(makeCall: MakeCall): Promise<void> {
    for (let isServed = true; isServed && !this.isOver;) {
      const call = this.call(makeCall());
      this.underWay.add(call);
      isServed = await call;
      this.underWay.delete(call);
    }
  }

  /** Whether the server is still there. */
  private async call(call: Call): Promise<boolean> {
    const sentAt = performance.now();
    try {
      const reply = await this.client.send('POST', call.path, call.content);
      this.tally.reply(call, reply, sentAt);
      return true;
    } catch {
      this.tally.unanswered(call);
      return false;
    }
  }
}

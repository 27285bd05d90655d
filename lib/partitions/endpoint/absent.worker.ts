import { messageOf } from '../../errors.js';
import { NotStartedError } from '../partition.js';
import type { Worker } from '../worker/supervised.partition.js';

/** In place of a server that is down: it has ended already, so that its supervisor tries again. */
export class AbsentWorker implements Worker {
  readonly prefetch = 0;
  readonly ended: Promise<Error>;

  constructor(private readonly reason: Error) {
    this.ended = Promise.resolve(reason);
  }

  readonly kill = (): void => {};

  async run(): Promise<never> {
    throw new NotStartedError(messageOf(this.reason), { cause: this.reason });
  }

  async close(): Promise<void> {}
}

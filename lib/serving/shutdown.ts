import { Logger } from '@nestjs/common';
import { ServingClosedError } from '../errors.js';
import { type ShutdownOptions } from '../definition/option-rules.js';

/** What takes calls and can be shut down. */
export interface Closable {
  /** Still takes calls, and lets none of them wait for others. */
  drain(): void;
  /** Takes no more calls, and answers those that no partition has taken. */
  abandon(error: Error): void;
  /** Takes no more calls, and answers those that are left. Says whether there were any. */
  end(error: Error): boolean;
  /** Ends what still runs, where that is safe. */
  halt?(): void;
  /**
   * Takes no more calls; resolves when those that are left are answered and everything has ended.
   */
  close(): Promise<void>;
  /** What runs although its callers were answered, in words. */
  unfinished(): readonly string[];
}

/**
 * Milliseconds that what still runs at the limit has to come to its end, and then once more when it
 * was halted.
 */
const GRACE = 200;

/**
 * The order of shutdown. From {@link begin} on no call waits for others, and with `drain: false`
 * those that are queued are answered as closed. From {@link complete} on no call is taken. At the
 * limit every call that is left is answered as closed, and what can be ended is ended.
 */
export class Shutdown {
  private readonly logger = new Logger('Serving');
  private limit: Promise<void> | undefined;
  private clock: NodeJS.Timeout | undefined;
  private completing: Promise<void> | undefined;

  constructor(
    /** As messages name it: `Serving "x"`. */
    private readonly owner: string,
    private readonly options: ShutdownOptions,
    private readonly target: Closable,
  ) {}

  get hasBegun(): boolean {
    return this.limit !== undefined;
  }

  /** Whether calls are refused. */
  get isCompleting(): boolean {
    return this.completing !== undefined;
  }

  /** Starts the clock. Nest then waits for the clients of its servers, which may still call. */
  begin(): void {
    if (this.limit) {
      return;
    }
    const { drainOnShutdown, drainTimeout } = this.options;
    this.limit = this.enforce(drainTimeout);
    if (drainOnShutdown) {
      this.target.drain();
    } else {
      this.target.abandon(
        new ServingClosedError(`${this.owner} was closed before the call could run`),
      );
    }
  }

  /** Resolves when all has ended, and soon after the limit in any case. */
  complete(): Promise<void> {
    return (this.completing ??= this.run());
  }

  private async run(): Promise<void> {
    this.begin();
    await Promise.race([this.target.close(), this.limit]);
    clearTimeout(this.clock);
    const unfinished = this.target.unfinished();
    if (unfinished.length > 0) {
      this.logger.warn(
        `${this.owner} is closed, and cannot end what still runs: ${unfinished.join(', ')}`,
      );
    }
  }

  /** Resolves when there is nothing more to wait for. */
  private async enforce(shutdown: number): Promise<void> {
    await this.delay(shutdown);
    this.endCalls();
    await this.delay(GRACE);
    this.target.halt?.();
    await this.delay(GRACE);
  }

  private delay(milliseconds: number): Promise<void> {
    return new Promise((resolve) => (this.clock = setTimeout(resolve, milliseconds)));
  }

  private endCalls(): void {
    const { owner, target, options } = this;
    if (target.end(new ServingClosedError(`${owner} was closed before the call had ended`))) {
      this.logger.warn(
        `${owner} did not finish within ${options.drainTimeout} ms of shutdown; the calls that ` +
          'were left are answered as closed',
      );
    }
  }
}

import { ServingClosedError } from '../errors.js';
import { log } from '../log.js';
import type { ShutdownOptions } from '../definition/serving-definition.js';

/**
 * Stops calls, the softest way first. All refuse new calls. `abandon` fails the calls that no
 * partition has taken, `end` fails all calls, and `halt` also ends running work if that is safe.
 */
export type Rung = 'abandon' | 'end' | 'halt';

export interface Closable {
  /** Takes calls as before, but lets no call wait for others. */
  drain(): void;
  /** True if there were any calls. */
  stop(rung: Rung, error: Error): boolean;
  /** Resolves when all calls are answered and everything has ended. */
  close(): Promise<void>;
  /** Describes, for a log, work that continues although its callers were answered. */
  unfinished(): readonly string[];
}

/** Milliseconds for running work to end at the limit, and again after it was halted. */
const GRACE = 200;

/**
 * After {@link begin} no call waits for others, and with `drain: false` queued calls fail as
 * closed. After {@link complete} no call is taken. At the limit all remaining calls fail as closed,
 * and everything that can be ended ends.
 */
export class Shutdown {
  private limit: Promise<void> | undefined;
  private clock: NodeJS.Timeout | undefined;
  private completing: Promise<void> | undefined;

  constructor(
    /** Name in messages: `Serving "x"`. */
    private readonly owner: string,
    private readonly options: Required<ShutdownOptions>,
    private readonly target: Closable,
  ) {}

  get hasBegun(): boolean {
    return this.limit !== undefined;
  }

  get isCompleting(): boolean {
    return this.completing !== undefined;
  }

  /** Starts the clock. Nest waits next for its servers' clients, which may still call. */
  begin(): void {
    if (this.limit) {
      return;
    }
    const { drain, timeout } = this.options;
    this.limit = this.enforce(timeout);
    if (drain) {
      this.target.drain();
    } else {
      const error = new ServingClosedError(`${this.owner} was closed before the call could run`);
      this.target.stop('abandon', error);
    }
  }

  /** Resolves when everything has ended, or soon after the limit. */
  complete(): Promise<void> {
    return (this.completing ??= this.run());
  }

  private async run(): Promise<void> {
    this.begin();
    await Promise.race([this.target.close(), this.limit]);
    clearTimeout(this.clock);
    const unfinished = this.target.unfinished();
    if (unfinished.length > 0) {
      log.warn(`${this.owner} is closed, and cannot end what still runs: ${unfinished.join(', ')}`);
    }
  }

  private async enforce(shutdown: number): Promise<void> {
    const { owner, target } = this;
    await this.delay(shutdown);
    const error = new ServingClosedError(`${owner} was closed before the call had ended`);
    if (target.stop('end', error)) {
      log.warn(
        `${owner} did not finish within ${shutdown} ms of shutdown; the calls that were left are ` +
          'answered as closed',
      );
    }
    await this.delay(GRACE);
    target.stop('halt', error);
    await this.delay(GRACE);
  }

  private delay(milliseconds: number): Promise<void> {
    return new Promise((resolve) => (this.clock = setTimeout(resolve, milliseconds)));
  }
}

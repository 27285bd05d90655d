import { ServingClosedError } from '../errors.js';
import { log } from '../log.js';
import type { ShutdownOptions } from '../definition/serving-definition.js';

/** A target of shutdown, which takes calls. */
export interface Closable {
  /** Takes calls as before, but lets none of them wait for others. */
  drain(): void;
  /** Takes no more calls, and fails those that no partition has taken. */
  abandon(error: Error): void;
  /** Takes no more calls, and fails all that are left. True if there were any. */
  end(error: Error): boolean;
  /** Ends running work if that is safe. */
  halt?(): void;
  /** Takes no more calls; resolves when all calls are answered and everything has ended. */
  close(): Promise<void>;
  /** The work that runs on although its callers were answered, described for a log. */
  unfinished(): readonly string[];
}

/** Milliseconds that running work has to end at the limit, and once more after it was halted. */
const GRACE = 200;

/**
 * The order of shutdown. After {@link begin} no call waits for others, and with
 * `drain: false` queued calls fail as closed. After {@link complete} no call is taken. At
 * the limit all calls that are left fail as closed, and everything that can be ended is ended.
 */
export class Shutdown {
  private limit: Promise<void> | undefined;
  private clock: NodeJS.Timeout | undefined;
  private completing: Promise<void> | undefined;

  constructor(
    /** The owner as messages name it: `Serving "x"`. */
    private readonly owner: string,
    private readonly options: Required<ShutdownOptions>,
    private readonly target: Closable,
  ) {}

  get hasBegun(): boolean {
    return this.limit !== undefined;
  }

  /** True if calls are refused. */
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
      this.target.abandon(
        new ServingClosedError(`${this.owner} was closed before the call could run`),
      );
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

  /** Resolves when nothing is left to wait for. */
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
      log.warn(
        `${owner} did not finish within ${options.timeout} ms of shutdown; the calls that ` +
          'were left are answered as closed',
      );
    }
  }
}

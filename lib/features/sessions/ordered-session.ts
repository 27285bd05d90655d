import { formatValue } from '../../core/format.js';
import { callingBatch, type CallingBatch, refuseCycle } from '../../core/context/call-cycles.js';
import {
  callInRequest,
  type CallOptions,
  NO_OPTIONS,
  requireOptions,
} from '../../core/context/call-context.js';
import {
  hasRun,
  InvalidInputError,
  isA,
  isError,
  OverloadedError,
  PartitionLostError,
  SessionEndedError,
} from '../../core/errors.js';
import {
  INTERNAL,
  type InternalCallOptions,
  onCancel,
  resolveCallOptions,
  type ResolvedCallOptions,
} from '../../core/execution/resolved-call-options.js';
import type { CallGroup } from '../../core/execution/lanes.js';
import {
  type OpenSession,
  type SessionCallOptions,
  type SessionOptions,
  ServingSession,
} from '../../core/execution/kept-states.js';
import { type Partition, statusOf } from '../../core/partitions/partition.js';
import type { StateTurn } from '../../core/partitions/row-states.js';

export interface SessionHost {
  readonly serving: string;
  /** Milliseconds from its last call until the session ends; no limit by default. */
  readonly idle?: number;
  readonly group?: CallGroup;
  /** Calls that wait for earlier ones of their sessions, of all sessions that share this. */
  readonly waits: { count: number; readonly most: number };
  /** True if a failed first call ends the session: a client may have sent further steps already. */
  readonly needsFirst?: boolean | undefined;
  resolve(input: unknown, options: CallOptions): ResolvedCallOptions;
  run(input: unknown, options: StepOptions): Promise<unknown>;
  /** Counts a call that ends before its step. */
  refused?(error: unknown, options: CallOptions): void;
  /** May be called again. */
  ended(reason: SessionEndedError): void;
}

export type StepOptions = InternalCallOptions & {
  readonly [INTERNAL]: { readonly resolved: ResolvedCallOptions; readonly turn: SessionTurn };
};

export class SessionTurn implements StateTurn {
  steps = 0;
  runner: CallingBatch | undefined;
  /** Its partition's restarts at its first step: its state is in that worker. */
  private restarts = 0;

  constructor(
    readonly id: number,
    private readonly serving: string,
  ) {}

  check(rows?: number): void {
    if (rows !== 1) {
      throw new InvalidInputError(
        `A call of a session of serving "${this.serving}" is one step of one row, and not ` +
          `${rows === undefined ? 'a sequence' : `of ${rows}`}; make a call for each step`,
      );
    }
  }

  lossOn(partition: Partition): SessionEndedError | undefined {
    const { restarts } = statusOf(partition);
    if (this.steps === 0) {
      this.restarts = restarts;
    }
    return this.restarts === restarts
      ? undefined
      : endedBy(
          'its state is lost, since the thread or process of its partition was started again',
        );
  }
}

export function endedBy(why: string, cause?: unknown): SessionEndedError {
  return new SessionEndedError(`The session has ended: ${why}; open another one`, { cause });
}

/** @throws InvalidInputError for an unknown option or an invalid value */
export function checkSessionOptions(serving: string, options: CallOptions): void {
  requireOptions(options);
  const { tenant, key, version: _version, ...others } = options;
  const [unknown] = Object.keys(others);
  if (unknown !== undefined) {
    throw new InvalidInputError(
      `A session of serving "${serving}" has the option ${formatValue(unknown)}; allowed are ` +
        'tenant, key and version, and others with each call',
    );
  }
  resolveCallOptions({ name: serving }, undefined, { tenant, key });
}

/**
 * Calls take turns: each needs the state after the previous one.
 *
 * One place decides how a call ends, since a step that succeeds changes the state: until its turn
 * comes, {@link OrderedSession.turnOf}, and then only the host. So a call that fails never changes
 * the state.
 */
export class OrderedSession extends ServingSession implements OpenSession {
  private readonly turn: SessionTurn;
  private readonly options: SessionOptions;
  private isRunning = false;
  /** Oldest first. */
  private readonly waiting = new Set<() => void>();
  private ended: SessionEndedError | undefined;
  /** True if waiting calls fail, too. */
  private isOver = false;
  private readonly idle: NodeJS.Timeout | undefined;

  constructor(
    id: number,
    { tenant, key }: SessionOptions,
    private readonly host: SessionHost,
  ) {
    super();
    this.turn = new SessionTurn(id, host.serving);
    this.options = tenant === undefined && key === undefined ? NO_OPTIONS : { tenant, key };
    this.idle =
      host.idle === undefined ? undefined : setTimeout(() => this.endIdle(), host.idle).unref();
  }

  override run(input: unknown, options: SessionCallOptions = NO_OPTIONS): Promise<unknown> {
    return this.runAfter(undefined, input, options);
  }

  runAfter(
    steps: number | undefined,
    input: unknown,
    options: SessionCallOptions,
  ): Promise<unknown> {
    return callInRequest(options, (inside) => this.enqueue(steps, input, inside));
  }

  override async close(): Promise<void> {
    this.ended ??= endedBy('it was closed');
    if (this.isRunning) {
      await new Promise<void>((resolve) => this.waiting.add(resolve));
      this.next();
    }
    this.end(this.ended);
  }

  end(reason: SessionEndedError): SessionEndedError {
    this.ended = reason;
    this.isOver = true;
    clearTimeout(this.idle);
    this.host.ended(reason);
    return reason;
  }

  private async enqueue(
    steps: number | undefined,
    input: unknown,
    given: CallOptions,
  ): Promise<unknown> {
    let options = given;
    let resolved: ResolvedCallOptions;
    try {
      options = this.withOwn(given);
      resolved = this.admit(input, options);
      if (this.isRunning) {
        this.refuseInOwnStep();
        await this.turnOf(resolved);
      }
      if (this.isOver) {
        this.next();
        throw this.ended!;
      }
    } catch (error) {
      this.host.refused?.(error, options);
      throw error;
    }
    this.isRunning = true;
    return this.step(steps, input, options, resolved);
  }

  private admit(input: unknown, options: CallOptions): ResolvedCallOptions {
    if (this.ended) {
      throw this.ended;
    }
    const resolved = this.host.resolve(input, options);
    options.signal?.throwIfAborted();
    return resolved;
  }

  private withOwn(options: CallOptions): CallOptions {
    if (options === NO_OPTIONS) {
      return this.options;
    }
    const { tenant, key, version, signal } = options;
    const [given] =
      Object.entries({ tenant, key, version }).find(([, value]) => value !== undefined) ?? [];
    if (given !== undefined) {
      throw new InvalidInputError(
        `A call of a session of serving "${this.host.serving}" has the option "${given}", which is its ` +
          `session's: open({ ${given} })`,
      );
    }
    // Options may be an AbortController, whose inherited signal a copy would lose.
    return { ...options, signal, ...this.options };
  }

  /** @throws CallCycleError if the call's own step would wait for it */
  private refuseInOwnStep(): void {
    const { runner } = this.turn;
    const caller = callingBatch();
    if (caller && runner && !runner.hasEnded) {
      refuseCycle(caller, runner.serving, [[runner]]);
    }
  }

  /**
   * Rejects if the call is cancelled before its turn.
   *
   * @throws OverloadedError when too many wait
   */
  private async turnOf(resolved: ResolvedCallOptions): Promise<void> {
    const { serving, waits } = this.host;
    if (waits.count >= waits.most) {
      throw new OverloadedError(
        `Serving "${serving}" has ${waits.most} calls that wait for earlier ones of their sessions, and ` +
          'takes no more; wait for their answers before the next calls',
      );
    }
    waits.count++;
    try {
      await new Promise<void>((resolve, reject) => {
        let stop: (() => void) | undefined;
        const begin = (): void => {
          stop?.();
          resolve();
        };
        this.waiting.add(begin);
        stop = onCancel(resolved, (error) => {
          this.waiting.delete(begin);
          stop?.();
          reject(error);
        });
      });
    } finally {
      waits.count--;
    }
  }

  private async step(
    steps: number | undefined,
    input: unknown,
    options: CallOptions,
    resolved: ResolvedCallOptions,
  ): Promise<unknown> {
    const { turn, host } = this;
    turn.steps = steps ?? turn.steps;
    try {
      const { group } = host;
      const output = await host.run(input, { ...options, [INTERNAL]: { resolved, group, turn } });
      turn.steps++;
      return output;
    } catch (error) {
      // The serving's code may rethrow another serving's error, which has not ended this state.
      const isOwn = !isError(error) || !hasRun(error);
      if (isOwn && isA(error, SessionEndedError)) {
        throw this.end(error);
      }
      if (isOwn && isA(error, PartitionLostError) && turn.steps > 0) {
        throw this.end(endedBy(`its state is lost (${error.message})`, error));
      }
      if (turn.steps === 0 && host.needsFirst) {
        this.end(endedBy('its first call failed', error));
      }
      throw error;
    } finally {
      this.next();
    }
  }

  private next(): void {
    const [begin] = this.waiting;
    this.isRunning = begin !== undefined;
    if (begin) {
      this.waiting.delete(begin);
      begin();
    } else {
      this.idle?.refresh();
    }
  }

  private endIdle(): void {
    if (this.isRunning) {
      this.idle?.refresh();
    } else {
      this.end(endedBy(`it had no call for ${this.host.idle} ms (sessions.idle)`));
    }
  }
}

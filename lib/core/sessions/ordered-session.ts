import { callingBatch, refuseCycle } from '../context/call-cycles.js';
import { callInRequest, type CallOptions } from '../context/call-context.js';
import { isA, PartitionLostError, SessionEndedError } from '../errors.js';
import {
  type InternalCallOptions,
  NO_OPTIONS,
  onCancel,
  type ResolvedCallOptions,
} from '../execution/resolved-call-options.js';
import type { CallGroup } from '../execution/lanes.js';
import { endedBy, SessionTurn } from '../execution/request.js';

/** A session's options: they hold for all its calls. */
export type SessionOptions = Pick<CallOptions, 'tenant' | 'key' | 'version'>;

/** The options of a session's call. */
export type SessionCallOptions = Omit<CallOptions, keyof SessionOptions>;

/**
 * Calls with a state that stays where their batches run: each call is a step from the state that
 * the last one left. Made by `serving.open()`.
 */
// Both are types of the calls.
// oxlint-disable-next-line typescript/no-unnecessary-type-parameters
export abstract class ServingSession<Input = unknown, Output = unknown> implements AsyncDisposable {
  /**
   * Makes the next step with the input, one row, after all earlier calls of the session; steps of
   * different sessions share batches. A call that fails leaves the state as it was.
   *
   * @throws SessionEndedError when the session has ended, or its state is lost
   * @throws the errors of `batchedRun`
   */
  abstract run(input: Input, options?: SessionCallOptions): Promise<Output>;

  /** Ends the session after its calls, and frees its state. */
  abstract close(): Promise<void>;

  /** {@link close}, for `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

export interface SessionHost {
  /** Milliseconds from its last call until the session ends; no limit by default. */
  readonly idle?: number;
  /** Its calls share batches with other sessions' in the same place. */
  readonly group?: CallGroup;
  /** The session ends if its first call fails: a client may have sent further steps already. */
  readonly needsFirst?: boolean | undefined;
  resolve(input: unknown, options: CallOptions): ResolvedCallOptions;
  run(input: unknown, options: StepOptions): Promise<unknown>;
  /** Counts a call that ended before its turn, with its error. */
  refused?(error: unknown, options: CallOptions): void;
  /** Frees the session's state; may be called again. */
  ended(reason: SessionEndedError): void;
}

export type StepOptions = InternalCallOptions & {
  readonly resolved: ResolvedCallOptions;
  readonly session: SessionTurn;
};

/**
 * A session whose calls take turns: each needs the state after the one before it.
 *
 * One place decides how a call ends, since a step that succeeds changes the state: until its turn
 * comes, {@link OrderedSession.turnOf}, and then only the host. So a call that fails never changes
 * the state.
 */
export class OrderedSession extends ServingSession {
  private readonly turn: SessionTurn;
  private readonly options: SessionOptions;
  private isRunning = false;
  /** Begin the next call, or the end; the oldest first. */
  private readonly waiting = new Set<() => void>();
  private ended: SessionEndedError | undefined;
  /** Waiting calls fail, too. */
  private isOver = false;
  private readonly idle: NodeJS.Timeout | undefined;

  constructor(
    id: number,
    { tenant, key }: SessionOptions,
    private readonly host: SessionHost,
  ) {
    super();
    this.turn = new SessionTurn(id);
    this.options = tenant === undefined && key === undefined ? NO_OPTIONS : { tenant, key };
    this.idle =
      host.idle === undefined ? undefined : setTimeout(() => this.endIdle(), host.idle).unref();
  }

  override run(input: unknown, options: SessionCallOptions = NO_OPTIONS): Promise<unknown> {
    return this.runAfter(undefined, input, options);
  }

  /**
   * Like {@link run}, from the state after that number of steps: for a caller that may not have
   * received the last reply.
   */
  runAfter(
    steps: number | undefined,
    input: unknown,
    options: SessionCallOptions,
  ): Promise<unknown> {
    // Options may be an AbortController, whose inherited signal a copy would lose.
    const own =
      options === NO_OPTIONS
        ? this.options
        : { ...options, signal: options.signal, ...this.options };
    return callInRequest(own, (inside) => this.enqueue(steps, input, inside));
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
    options: CallOptions,
  ): Promise<unknown> {
    if (this.ended) {
      throw this.ended;
    }
    const resolved = this.host.resolve(input, options);
    options.signal?.throwIfAborted();
    if (this.isRunning) {
      this.refuseInOwnStep();
      await this.turnOf(options, resolved);
    }
    if (this.isOver) {
      this.host.refused?.(this.ended, options);
      this.next();
      throw this.ended!;
    }
    this.isRunning = true;
    return this.step(steps, input, options, resolved);
  }

  /** @throws CallCycleError if the call is made by the step that it would wait for */
  private refuseInOwnStep(): void {
    const { runner } = this.turn;
    const caller = callingBatch();
    if (caller && runner && !runner.hasEnded) {
      refuseCycle(caller, runner.serving, [[runner]]);
    }
  }

  /** Resolves when a call's turn has come; rejects if the call is cancelled before. */
  private turnOf(options: CallOptions, resolved: ResolvedCallOptions): Promise<void> {
    return new Promise((resolve, reject) => {
      let stop: (() => void) | undefined;
      const begin = (): void => {
        stop?.();
        resolve();
      };
      this.waiting.add(begin);
      stop = onCancel(resolved, (error) => {
        this.waiting.delete(begin);
        stop?.();
        this.host.refused?.(error, options);
        reject(error);
      });
    });
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
      const output = await host.run(input, { ...options, resolved, group, session: turn });
      turn.steps++;
      return output;
    } catch (error) {
      if (isA(error, SessionEndedError)) {
        throw this.end(error);
      }
      if (isA(error, PartitionLostError) && turn.steps > 0) {
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

import { callInRequest } from '../context/caller-context.js';
import type { CallOptions } from '../context/call-options.js';
import { isA, PartitionLostError, SessionEndedError } from '../errors.js';
import {
  NO_OPTIONS,
  orCancelled,
  type ResolvedCallOptions,
} from '../execution/resolved-call-options.js';
import { SessionTurn } from '../execution/session-turn.js';
import type { InternalCallOptions } from '../execution/resolved-call-options.js';
import { type SessionCallOptions, type SessionOptions, ServingSession } from './serving-session.js';

/** Where the state of a session is. */
export interface SessionHost {
  /** Milliseconds from its last call after which the session ends; no limit by default. */
  readonly idle?: number;
  resolve(input: unknown, options: CallOptions): ResolvedCallOptions;
  /** Runs the input where the state is. */
  run(input: unknown, options: StepOptions): Promise<unknown>;
  /** Frees the state of the session; may be called again. */
  ended(reason: SessionEndedError): void;
}

/** The options of one step, and its session. */
export type StepOptions = InternalCallOptions & {
  readonly resolved: ResolvedCallOptions;
  readonly session: SessionTurn;
};

/** A session whose calls take turns: each needs the state after the one before it. */
export class OrderedSession extends ServingSession {
  private readonly turn: SessionTurn;
  /** Settles when the last call that was made has ended; undefined while there is none. */
  private last: Promise<void> | undefined;
  /** The reason why it takes no more calls. */
  private ended: SessionEndedError | undefined;
  private readonly idle: NodeJS.Timeout | undefined;

  constructor(
    id: number,
    private readonly options: SessionOptions,
    private readonly host: SessionHost,
  ) {
    super();
    this.turn = new SessionTurn(id);
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
    return callInRequest(options, (inside) =>
      this.enqueue(steps, input, { ...inside, signal: inside.signal, ...this.options }),
    );
  }

  override async close(): Promise<void> {
    this.ended ??= endedBy('it was closed');
    await this.last;
    this.end(this.ended);
  }

  /** Ends the session now. */
  end(reason: SessionEndedError): SessionEndedError {
    this.ended = reason;
    clearTimeout(this.idle);
    this.host.ended(reason);
    return reason;
  }

  /** The state of the call before it is that of its predecessor, so the calls take turns. */
  private enqueue(
    steps: number | undefined,
    input: unknown,
    options: CallOptions,
  ): Promise<unknown> {
    if (this.ended) {
      return Promise.reject(this.ended);
    }
    const { last: before } = this;
    let terms: ResolvedCallOptions;
    try {
      options.signal?.throwIfAborted();
      terms = this.host.resolve(input, options);
    } catch (error) {
      return Promise.reject(error);
    }
    const step = (): Promise<unknown> => this.step(steps, input, { ...options, resolved: terms });
    const reply = before ? before.then(step) : step();
    const last: Promise<void> = reply.then(nothing, nothing).then(() => this.stepEnded(last));
    this.last = last;
    return before ? orCancelled(terms, reply) : reply;
  }

  private async step(
    steps: number | undefined,
    input: unknown,
    options: Omit<StepOptions, 'session'>,
  ): Promise<unknown> {
    const { turn, host } = this;
    turn.steps = steps ?? turn.steps;
    try {
      const output = await host.run(input, { ...options, session: turn });
      turn.steps++;
      return output;
    } catch (error) {
      if (isA(error, SessionEndedError)) {
        throw this.end(error);
      }
      if (isA(error, PartitionLostError) && turn.steps > 0) {
        throw this.end(endedBy(`its state is lost (${error.message})`, error));
      }
      throw error;
    }
  }

  private stepEnded(call: Promise<void>): void {
    if (this.last === call) {
      this.last = undefined;
      this.idle?.refresh();
    }
  }

  private endIdle(): void {
    if (this.last) {
      this.idle?.refresh();
    } else {
      this.end(endedBy(`it had no call for ${this.host.idle} ms (sessions.idle)`));
    }
  }
}

function nothing(): void {}

export function endedBy(why: string, cause?: unknown): SessionEndedError {
  return new SessionEndedError(`The session has ended: ${why}; open another one`, { cause });
}

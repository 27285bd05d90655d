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

/** What a session needs of its serving. */
export interface SessionHost {
  /** Milliseconds from its last call after which a session ends. */
  readonly idle: number;
  resolve(input: unknown, options: CallOptions): ResolvedCallOptions;
  /** Runs the input on the partition of the session. */
  run(input: unknown, options: InternalCallOptions): Promise<unknown>;
  /** Frees the state of the session. */
  ended(session: LocalSession): void;
}

/** A session with a partition of this application. */
export class LocalSession extends ServingSession {
  private readonly turn: SessionTurn;
  /** Settles when the last call that was made has ended; undefined while there is none. */
  private last: Promise<void> | undefined;
  /** The reason why it takes no more calls. */
  private ended: SessionEndedError | undefined;
  private readonly idle: NodeJS.Timeout;

  constructor(
    readonly id: number,
    private readonly options: SessionOptions,
    private readonly host: SessionHost,
  ) {
    super();
    this.turn = new SessionTurn(id);
    this.idle = setTimeout(() => this.endIdle(), host.idle).unref();
  }

  override run(input: unknown, options: SessionCallOptions = NO_OPTIONS): Promise<unknown> {
    // Options may be an AbortController, whose inherited signal a copy would lose.
    return callInRequest(options, (inside) =>
      this.enqueue(input, { ...inside, signal: inside.signal, ...this.options }),
    );
  }

  override async close(): Promise<void> {
    this.ended ??= endedBy('it was closed');
    await this.last;
    this.release();
  }

  /** Ends the session now. */
  end(reason: SessionEndedError): SessionEndedError {
    this.ended = reason;
    this.release();
    return reason;
  }

  /** The state of the call before it is that of its predecessor, so the calls take turns. */
  private enqueue(input: unknown, options: CallOptions): Promise<unknown> {
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
    const step = (): Promise<unknown> => this.step(input, { ...options, resolved: terms });
    const reply = before ? before.then(step) : step();
    const last: Promise<void> = reply.then(nothing, nothing).then(() => this.stepEnded(last));
    this.last = last;
    return before ? orCancelled(terms, reply) : reply;
  }

  private async step(input: unknown, options: InternalCallOptions): Promise<unknown> {
    const { turn, host } = this;
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
      this.idle.refresh();
    }
  }

  private endIdle(): void {
    if (this.last) {
      this.idle.refresh();
    } else {
      this.end(endedBy(`it had no call for ${this.host.idle} ms (sessions.idle)`));
    }
  }

  private release(): void {
    clearTimeout(this.idle);
    this.host.ended(this);
  }
}

function nothing(): void {}

export function endedBy(why: string, cause?: unknown): SessionEndedError {
  return new SessionEndedError(`The session has ended: ${why}; open another one`, { cause });
}

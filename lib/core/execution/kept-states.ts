import type { CallOptions } from '../context/call-context.js';
import type { Callbacks, ResolvedServing, StatesPlan } from '../definition/resolved-serving.js';
import type { SessionEndedError } from '../errors.js';
import type { Pipeline } from './pipeline.js';

export interface StatesOpener extends StatesPlan {
  open(version: VersionOfStates): OpenStates;
}

export interface VersionOfStates {
  readonly options: ResolvedServing;
  readonly callbacks: Callbacks;
  readonly pipeline: Pipeline;
  readonly onEnd: () => void;
}

export interface OpenStates {
  readonly size: number;
  /** @param needsFirst ends it if its first call fails */
  openSession(
    options: SessionOptions,
    onEnd?: (reason: SessionEndedError) => void,
    needsFirst?: boolean,
  ): OpenSession;
  close(): void;
}

/** A session's options, valid for all its calls. */
export type SessionOptions = Pick<CallOptions, 'tenant' | 'key' | 'version'>;

/** The options of a session's call. */
export type SessionCallOptions = Omit<CallOptions, keyof SessionOptions>;

/**
 * Calls with a state that stays where their batches run: each call is a step from the last one's
 * state. Made by `serving.open()`.
 */
// Both are types of the calls.
// oxlint-disable-next-line typescript/no-unnecessary-type-parameters
export abstract class ServingSession<Input = unknown, Output = unknown> implements AsyncDisposable {
  /**
   * Makes the next step with the input, one row, after the session's earlier calls; steps of
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

/** Serves a protocol, whose caller may repeat a step. */
export interface OpenSession extends ServingSession {
  /**
   * Like `run`, from the state after that number of steps: the caller may have missed the last
   * reply.
   */
  runAfter(
    steps: number | undefined,
    input: unknown,
    options: SessionCallOptions,
  ): Promise<unknown>;
}

import type { CallOptions } from '../context/call-context.js';
import type { Callbacks, ResolvedServing, StatesPlan } from '../definition/resolved-serving.js';
import type { SessionEndedError } from '../errors.js';
import type { Pipeline } from './pipeline.js';

/** Keeps states on the partitions of each version. */
export interface StatesOpener extends StatesPlan {
  open(version: VersionOfStates): OpenStates;
}

export interface VersionOfStates {
  readonly options: ResolvedServing;
  readonly callbacks: Callbacks;
  readonly pipeline: Pipeline;
  /** Called when a state was dropped. */
  readonly onEnd: () => void;
}

/** The states of one version. */
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

/** For a protocol, whose caller may repeat a step. */
export interface OpenSession extends ServingSession {
  /**
   * Like `run`, from the state after that number of steps: for a caller that may not have received
   * the last reply.
   */
  runAfter(
    steps: number | undefined,
    input: unknown,
    options: SessionCallOptions,
  ): Promise<unknown>;
}

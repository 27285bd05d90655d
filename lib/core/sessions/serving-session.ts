import type { CallOptions } from '../context/call-context.js';

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

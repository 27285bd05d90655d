/**
 * An output of a stream: the result of a batch function for consecutive rows of the call, or a step
 * of it.
 */
export interface OutputEvent<Output = unknown> {
  /** The rows of the call: `rows` of them from `offset` on. */
  readonly batch: {
    /** The index of the first of these rows in the call. */
    readonly offset: number;
    /** The number of these rows. */
    readonly rows: number;
  };
  /** The output for these rows, or their values of one step. */
  readonly output: Output;
  /** The metadata of the batch. */
  readonly metadata: unknown;
}

/** The value of a hook, for all rows of the call. */
export interface HookEvent<Hook extends string = string> {
  /** The name of the hook. */
  readonly hook: Hook;
  /** One entry per row of the call, or tensors with these rows. */
  readonly value: unknown;
}

/** An event of a stream: an output, or the value of a hook that was asked for. */
export type StreamEvent<Output = unknown, Hook extends string = never> =
  OutputEvent<Output> | ([Hook] extends [never] ? never : HookEvent<Hook>);

/** The metadata of a batch, and its rows of the call. */
export interface PartMetadata {
  /** The index of the first of these rows in the call. */
  readonly offset: number;
  /** The number of these rows. */
  readonly rows: number;
  readonly metadata: unknown;
}

/** The metadata of the batches in which the rows of a call ran. */
export type CallMetadata =
  | {
      /** All rows of the call ran in one batch. */
      readonly isSplit: false;
      /** The metadata of the batch. */
      readonly metadata: unknown;
    }
  | {
      /** The rows of the call ran in several batches. */
      readonly isSplit: true;
      /** The metadata of each batch, in the order of the call's rows. */
      readonly metadata: readonly PartMetadata[];
    };

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

/**
 * The reply for a row of a sequence, or of a batch function that is a generator: the list of the
 * values that its steps made. A stream emits each of them by itself, so for a serving of
 * `Steps<string>` the outputs of `stream` are strings.
 */
export interface Steps<Value> extends Array<Value> {
  /** Never set: it marks the type. */
  readonly [steps]?: Value;
}

declare const steps: unique symbol;

/**
 * An output of a stream, of a serving whose reply is `Output`: the same, or of {@link Steps} one
 * value. Of several rows with steps it is a list, with `undefined` for rows that have ended.
 */
export type StreamedOutput<Output> = Output extends readonly (infer Entry)[]
  ? HasSteps<Output> extends true
    ? Entry
    : HasSteps<Entry> extends true
      ? StreamedOutput<Entry | undefined>[]
      : Output
  : Output;

/** Of `any` every symbol is a key. */
type HasSteps<Value> = symbol extends keyof Value
  ? false
  : typeof steps extends keyof Value
    ? true
    : false;

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
  /** The metadata of their batch. */
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

/**
 * A stream's output: a batch function's result for consecutive rows of the call, or a step of it.
 */
export interface OutputEvent<Output = unknown> {
  /** The call's rows: `rows` of them from `offset` on. */
  readonly batch: {
    /** Index of the first of these rows in the call. */
    readonly offset: number;
    /** Number of these rows. */
    readonly rows: number;
  };
  /** The output for these rows, or their values of one step. */
  readonly output: Output;
  /** The batch's metadata. */
  readonly metadata: unknown;
}

/**
 * A row's reply from a sequence, or from a batch function that is a generator: the list of its
 * steps' values. A stream emits each separately, so for a serving of `Steps<string>` the outputs of
 * `stream` are strings.
 */
export interface Steps<Value> extends Array<Value> {
  /** Never set: it marks the type. */
  readonly [steps]?: Value;
}

declare const steps: unique symbol;

/**
 * A stream's output, for a serving with the reply `Output`: the same, or one value of
 * {@link Steps}. For several rows with steps it is a list, with `undefined` for rows that have
 * ended.
 */
export type StreamedOutput<Output> = Output extends readonly (infer Entry)[]
  ? HasSteps<Output> extends true
    ? Entry
    : HasSteps<Entry> extends true
      ? StreamedOutput<Entry | undefined>[]
      : Output
  : Output;

/** Every symbol is a key of `any`. */
type HasSteps<Value> = symbol extends keyof Value
  ? false
  : typeof steps extends keyof Value
    ? true
    : false;

/** A hook's value, for all the call's rows. */
export interface HookEvent<Hook extends string = string> {
  /** The hook's name. */
  readonly hook: Hook;
  /** One entry per row of the call, or tensors with these rows. */
  readonly value: unknown;
}

/** An output, or a hook's value if the call asked for the hook. */
export type StreamEvent<Output = unknown, Hook extends string = never> =
  OutputEvent<Output> | ([Hook] extends [never] ? never : HookEvent<Hook>);

/** A batch's metadata, and the call's rows in it. */
export interface PartMetadata {
  /** Index of the first row in the call. */
  readonly offset: number;
  /** Number of rows. */
  readonly rows: number;
  /** The batch's metadata. */
  readonly metadata: unknown;
}

/** The metadata of the batches with a call's rows. */
export type CallMetadata =
  | {
      /** The call's rows ran in one batch. */
      readonly isSplit: false;
      /** The batch's metadata. */
      readonly metadata: unknown;
    }
  | {
      /** The call's rows ran in several batches. */
      readonly isSplit: true;
      /** Each batch's metadata, in row order. */
      readonly metadata: readonly PartMetadata[];
    };

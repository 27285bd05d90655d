/**
 * Output of a stream: what the batch function returned for consecutive rows of the call, or yielded
 * for them in one step.
 */
export interface OutputEvent<Output = unknown> {
  /** Which rows of the call these are: `rows` of them from `offset` on. */
  readonly batch: { readonly offset: number; readonly rows: number };
  readonly output: Output;
  readonly metadata: unknown;
}

/** The value of a hook, for all rows of the call. */
export interface HookEvent<Hook extends string = string> {
  readonly hook: Hook;
  readonly value: unknown;
}

/** What a stream gives: outputs, and values of the hooks that were asked for. */
export type StreamEvent<Output = unknown, Hook extends string = never> =
  OutputEvent<Output> | ([Hook] extends [never] ? never : HookEvent<Hook>);

/** What the batch function said of one batch, and which rows of a call were in it. */
export interface PartMetadata {
  /** The place of the first of these rows in the call. */
  readonly offset: number;
  /** How many they are. */
  readonly rows: number;
  readonly metadata: unknown;
}

/** What the batch function said of the batches in which the rows of a call ran. */
export type CallMetadata =
  | {
      /** All rows of the call ran in one batch. */
      readonly isSplit: false;
      /** What the batch function said of it. */
      readonly metadata: unknown;
    }
  | {
      /** The rows of the call ran in several batches. */
      readonly isSplit: true;
      /** What the batch function said of each of them, in the order of the call's rows. */
      readonly metadata: readonly PartMetadata[];
    };

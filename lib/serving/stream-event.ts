/** Output of a stream: what the batch function returned for consecutive rows of the call, or yielded for them in one step. */
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

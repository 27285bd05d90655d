import type { WireError } from '../errors.js';
import type { DeclaredPorts, ModelSignature } from './model-signature.js';
import type { BatchInfo, PartitionOptions } from './partition.js';
import type { WireValue } from './wire.js';

/** What a thread is for; given to it at start. */
export type ThreadTask = {
  readonly partition: number;
  readonly keys: readonly string[];
  readonly options: PartitionOptions;
} & (
  | ({
      readonly model: string | Uint8Array;
      readonly webgpuTurn: SharedArrayBuffer;
    } & DeclaredPorts)
  | { readonly file: string }
);

/** The first message of a thread: it is loaded, or why it is not. */
export type ThreadOpening = { readonly signature?: ModelSignature } | { readonly error: WireError };

/** To the thread: run this batch; nobody waits any more for these rows of the batch that runs; or `null`: no more will come. */
export type ThreadRequest =
  { readonly rows: WireValue; readonly info: BatchInfo } | { readonly batch: number; readonly over: readonly number[] } | null;

/**
 * From the thread: what a batch says before it ends, and how it ends; the batches one after the other, as they were asked for. With the
 * number of the batch, since a message that cannot be read does not arrive.
 */
export type ThreadReply = { readonly batch: number } & ThreadSaying;

export type ThreadSaying =
  { readonly hook: string; readonly value: WireValue } | { readonly step: WireValue; readonly metadata: unknown } | ThreadResult;

/** The end of a batch. */
export type ThreadResult =
  { readonly output: WireValue; readonly metadata: unknown } | { readonly stepped: true } | { readonly error: WireError };

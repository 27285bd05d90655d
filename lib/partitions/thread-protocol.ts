import type { WireError } from '../errors.js';
import type { DeclaredAxes, ModelSignature } from './model-signature.js';
import type { BatchContext, PartitionOptions } from './partition.js';
import type { WireValue } from './wire.js';

/** What a thread is for; given to it at start. */
export type ThreadTask = {
  readonly partition: number;
  readonly keys: readonly string[];
  readonly options: PartitionOptions;
} & (
  | {
      readonly model: string | Uint8Array;
      readonly inputs: DeclaredAxes;
      readonly outputs: DeclaredAxes;
      readonly webgpuTurn: SharedArrayBuffer;
    }
  | { readonly file: string }
);

/** The first message of a thread: it is loaded, or why it is not. */
export type ThreadOpening = { readonly signature?: ModelSignature } | { readonly error: WireError };

/** To the thread: run this batch, or `null`: no more will come. */
export type ThreadRequest = { readonly rows: WireValue; readonly context: BatchContext } | null;

/** From the thread, one per request and in the same order. */
export type ThreadReply = { readonly output: WireValue; readonly metadata: unknown } | { readonly error: WireError };

import type { WireError } from '../errors.js';
import type { ModelContent } from './model-content.js';
import type { DeclaredPorts, ModelSignature } from './model-signature.js';
import type { BatchInfo, PartitionOptions } from './partition.js';
import type { WireValue } from './wire.js';

/** What a worker is for; given to it at start. */
export type WorkerTask = {
  readonly partition: number;
  readonly keys: readonly string[];
  readonly options: PartitionOptions;
} & (
  | ({
      readonly model: ModelContent;
      /** Whose turn it is to use WebGPU, among the threads of one process. */
      readonly webgpuTurn?: SharedArrayBuffer;
    } & DeclaredPorts)
  | { readonly file: string }
);

/** To a worker: run this batch; nobody waits any more for these rows of the batch that runs; so many more of its steps were heard; or no more will come. */
export type WorkerRequest =
  | { readonly rows: WireValue; readonly info: BatchInfo }
  | { readonly batch: number; readonly over: readonly number[] }
  | { readonly batch: number; readonly heard: number }
  | { readonly end: true }
  /** End at once, whatever is left. */
  | { readonly halt: true }
  /** In place of rows that cannot be read where they were to run. */
  | { readonly unreadable: unknown };

/** To a process, beside what is for its worker: take back the batches that it was given and its worker has not begun. */
export interface TakeBack {
  /** The batches that it was given until now. */
  readonly takeBack: number;
}

/** From a process: how many batches were taken back. */
export interface TakenBack {
  readonly takenBack: number;
}

/** The execution providers of a session: the first that it uses, and those before and after it that do not work, with the reason. */
export interface SessionProviders {
  readonly inUse: string;
  readonly missing: readonly string[];
}

/** What a worker has loaded; nothing to say of a module file. */
export interface Loaded {
  readonly signature?: ModelSignature;
  readonly providers?: SessionProviders;
}

/** The first message of a worker: it is loaded, or why it is not. */
export type WorkerOpening = Loaded | { readonly error: WireError };

/**
 * From a worker: what a batch says before it ends, and how it ends. Batches are counted, from 0, and run one after the other, as they
 * were asked for.
 */
export type WorkerReply = { readonly batch: number } & (BatchNews | BatchEnd);

export type BatchNews =
  { readonly hook: string; readonly value: WireValue } | { readonly step: WireValue; readonly metadata: unknown };

export type BatchEnd =
  { readonly output: WireValue; readonly metadata: unknown } | { readonly stepped: true } | { readonly error: WireError };

/** The steps that a worker may send before it hears that the first of them were heard, so that a generator cannot fill the way with more than it carries. */
export const STEPS_AHEAD = 64;

/** The last message of a process: the error that its worker left uncaught. */
export interface Farewell {
  readonly failure: WireError | undefined;
}

/** The file descriptor where a process marks each batch that it begins, with a byte: unlike a message on its way, a mark is not lost with it. */
export const MARKS = 4;

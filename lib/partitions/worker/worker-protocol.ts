import type { WireError } from '../../errors.js';
import type { ModelContent } from '../onnx/model-content.js';
import type { DeclaredPorts, ModelSignature } from '../onnx/model-signature.js';
import type { WireOutput, WireRows } from './transfer.js';
import type { BatchInfo, PartitionOptions } from '../batch-function.js';

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

/**
 * To a worker: run this batch; nobody waits any more for these rows of the batch that runs; so many
 * more of its steps were heard; or no more will come.
 */
export type WorkerRequest =
  | { readonly rows: WireRows; readonly info: BatchInfo }
  | { readonly batch: number; readonly over: readonly number[] }
  | { readonly batch: number; readonly heard: number }
  | { readonly end: true }
  /** End at once, whatever is left. */
  | { readonly halt: true }
  /** In place of rows that cannot be read where they were to run. */
  | { readonly unreadable: unknown };

/**
 * To a process, beside what is for its worker: take back the batches that it was given and its
 * worker has not begun.
 */
export interface RevokeRequest {
  /** The batches that it was given until now. */
  readonly revoke: number;
}

/** From a process: how many batches were taken back. */
export interface RevokeReply {
  readonly revoked: number;
}

/**
 * The execution providers of a session: the first that it uses, and those before and after it that
 * do not work, with the reason.
 */
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
export type LoadResult = Loaded | { readonly error: WireError };

/**
 * From a worker: what a batch says before it ends, and how it ends. Batches are counted, from 0,
 * and run one after the other, as they were asked for.
 */
export type WorkerReply = { readonly batch: number } & (BatchProgress | BatchEnd);

export type BatchProgress =
  | { readonly hook: string; readonly value: WireOutput }
  | { readonly step: WireOutput; readonly metadata: unknown };

export type BatchEnd =
  | { readonly output: WireOutput; readonly metadata: unknown }
  | { readonly stepped: true }
  | { readonly error: WireError };

/**
 * The steps that a worker may send before it hears that the first of them were heard, so that a
 * generator cannot fill the way with more than it carries.
 */
export const STEPS_AHEAD = 64;

/** The last message of a process: the error that its worker left uncaught. */
export interface ExitMessage {
  readonly failure: WireError | undefined;
}

/**
 * The file descriptor where a process marks each batch that it begins, with a byte: unlike a
 * message on its way, a mark is not lost with it.
 */
export const MARKS = 4;

/** How a worker has ended: by itself with a code, or by a signal. */
export interface Ending {
  readonly code: number | null;
  readonly signal?: NodeJS.Signals | null;
  /** The error that it left uncaught. */
  readonly cause?: unknown;
}

/** Hears what a worker says; `unreadable` is why something that it said cannot be read here. */
export type OnMessage = (
  message: LoadResult | WorkerReply | { readonly unreadable: unknown },
) => void;

/**
 * The way to a worker and back. Messages come in their order, and all that the worker has sent
 * before it is said to have ended.
 */
export interface Channel {
  /** Where the worker is, for messages. */
  readonly name: 'thread' | 'process';
  readonly ended: Promise<Ending>;
  /**
   * How many batches the worker has begun; undefined where that is known from its replies alone.
   */
  readonly begun?: number;
  /** Whoever listened last is told. */
  listen(hear: OnMessage): void;
  /**
   * The buffers in `transfer` move where they can.
   *
   * @throws when the message cannot be cloned
   */
  post(request: WorkerRequest, transfer: readonly ArrayBuffer[]): void;
  /**
   * Takes back what the worker has not begun of so many batches that it was given until now, and
   * then tells how many those are.
   */
  revoke(given: number, tell: (taken: number) => void): void;
  /** Keeps the application's process alive. */
  ref(): void;
  /** Does so no more. */
  unref(): void;
  /** Ends the worker at once, whatever it does; only where that is safe. */
  kill?(): void;
  /**
   * Ends the worker as soon as that is safe: a process at once, a thread when its event loop turns.
   */
  halt(): void;
}

/**
 * Whether a batch begins, decided between the thread that would run it and the one that has handed
 * it over: what has been taken back never begins, and what has begun is never taken back. It counts
 * the batches that have passed, in memory that both share.
 */
export class BatchClaims {
  private readonly begun: Int32Array;

  constructor(readonly memory = new SharedArrayBuffer(Int32Array.BYTES_PER_ELEMENT)) {
    this.begun = new Int32Array(memory);
  }

  /** In the thread, for each batch in turn, counted from 0: whether it may begin. */
  tryBegin(batch: number): boolean {
    // The count has 32 bits, and starts over.
    return Atomics.compareExchange(this.begun, 0, batch, batch + 1) === (batch | 0);
  }

  /**
   * On the other side: takes back what has not begun of so many batches handed over until now; says
   * how many that are.
   */
  revoke(handed: number): number {
    return (handed - Atomics.exchange(this.begun, 0, handed)) | 0;
  }
}

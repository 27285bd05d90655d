import type { WireError } from '../../errors.js';
import type { ModelContent } from '../onnx/model-content.js';
import type { DeclaredPorts, ModelSignature } from '../onnx/model-signature.js';
import type { WireTensors, WireOutput, WireRows } from './transfer.js';
import type { BatchInfo, PartitionOptions, BatchListener } from '../batch-function.js';
import type { SessionRows } from '../session-states.js';
import type { SequenceLimits } from '../sequence/sequence-model.js';

interface Task {
  readonly partition: number;
  readonly keys: readonly string[];
  readonly options: PartitionOptions;
}

/** The task of a worker with a model. */
export interface ModelTask extends Task, DeclaredPorts {
  readonly model: ModelContent;
  /** The lock for WebGPU among the threads of one process. */
  readonly webgpuTurn?: SharedArrayBuffer;
}

/** The task of a worker with a module file. */
export interface FileTask extends Task {
  readonly file: string;
  /** The limits of a sequence, where the file returns a model for one. */
  readonly sequence?: SequenceLimits | undefined;
}

/** The task of a worker, sent to it at its start. */
export type WorkerTask = ModelTask | FileTask;

/** A batch of a module file. */
export interface RowsRequest {
  readonly rows: WireRows;
  readonly info: BatchInfo;
}

/** A batch of a model. */
export interface FeedsRequest {
  /** In the order of the inputs. */
  readonly feeds: WireTensors;
  readonly hooks: readonly string[];
  readonly sessions?: SessionRows | undefined;
}

/** Sessions that have ended, behind the batches that were sent before. */
export interface SessionsEnd {
  readonly endedSessions: readonly number[];
}

/** To a worker. */
export type WorkerRequest =
  | RowsRequest
  | FeedsRequest
  | SessionsEnd
  /** No caller waits any more for these rows of the batch that runs. */
  | { readonly batch: number; readonly endedRows: readonly number[] }
  /** Acknowledges this number of its steps. */
  | { readonly batch: number; readonly acknowledged: number }
  /** No more batches will come. */
  | { readonly end: true }
  /** End at once. */
  | { readonly halt: true }
  /** Replaces rows that cannot be read in the worker. */
  | { readonly unreadable: unknown };

/** To a process, beside the requests for its worker: revoke the batches that have not begun. */
export interface RevokeRequest {
  /** The number of batches sent to it so far. */
  readonly revoke: number;
}

/** From a process: the number of batches that were revoked. */
export interface RevokeReply {
  readonly revoked: number;
}

/** The execution providers of a session: the first in use, and those that do not work and why. */
export interface SessionProviders {
  readonly inUse: string;
  readonly missing: readonly string[];
}

/** The properties of a loaded model; empty for a module file. */
export interface Loaded {
  readonly signature?: ModelSignature;
  readonly providers?: SessionProviders;
}

/** The first message of a worker: it is loaded, or the reason why it is not. */
export type LoadResult = Loaded | { readonly error: WireError };

/**
 * From a worker: the progress or the end of a batch. Batches are counted from 0, and run one after
 * the other in the order of their requests.
 */
export type WorkerReply = { readonly batch: number } & (BatchProgress | BatchEnd);

export type BatchProgress =
  | { readonly hook: string; readonly value: WireOutput }
  | { readonly step: WireOutput; readonly metadata: unknown };

export type BatchEnd =
  | { readonly output: WireOutput; readonly metadata: unknown }
  /** Of a model, in the order of a `ModelReply`. */
  | { readonly reply: WireTensors }
  | { readonly stepped: true }
  | { readonly error: WireError };

/** Limit for unacknowledged steps, so that a generator cannot fill the channel. */
export const STEPS_AHEAD = 64;

/** The last message of a process: the uncaught error of its worker. */
export interface ExitMessage {
  readonly failure: WireError | undefined;
}

/**
 * The file descriptor where a process writes a byte for each batch that it begins: unlike a
 * message, a byte that was written is not lost when the process dies.
 */
export const MARKS = 4;

/** The exit of a worker: by itself with a code, or by a signal. */
export interface WorkerExit {
  readonly code: number | null;
  readonly signal?: NodeJS.Signals | null;
  /** The error that the worker did not catch. */
  readonly cause?: unknown;
}

/** Receives the messages of a worker; `unreadable` is the reason why one cannot be read here. */
export type OnMessage = (
  message: LoadResult | WorkerReply | { readonly unreadable: unknown },
) => void;

/** The channel to a worker and back. Messages keep their order, and arrive before the exit does. */
export interface Channel {
  /** The kind of the worker, for messages. */
  readonly name: 'thread' | 'process';
  readonly exited: Promise<WorkerExit>;
  /** The number of batches that the worker has begun; undefined where only its replies show it. */
  readonly begun?: number;
  /** Replaces the listener. */
  listen(onMessage: OnMessage): void;
  /**
   * Moves the buffers in `transfer` where that is possible.
   *
   * @throws when the message cannot be cloned
   */
  post(request: WorkerRequest, transfer: readonly ArrayBuffer[]): void;
  /**
   * Revokes those of the batches sent so far that have not begun, and then calls back with their
   * number.
   */
  revoke(sent: number, onRevoked: (count: number) => void): void;
  /** Keeps the application's process alive. */
  ref(): void;
  /** No longer keeps it alive. */
  unref(): void;
  /** Ends the worker at once, even in a run; only where that is safe. */
  kill?(): void;
  /** Ends the worker as soon as that is safe: a process at once, a thread on its next turn. */
  halt(): void;
}

/** The listener of a batch in a worker, whose messages go to the application. */
export type Listen = (hooks: readonly string[], plainRows: boolean) => BatchListener;

/** The model or module file that a worker has loaded. */
export interface WorkerSession {
  readonly loaded: Loaded;
  /** Whether it runs several batches at once, each as soon as it arrives. */
  readonly isConcurrent?: boolean;
  /** Runs one batch, and returns its end with the buffers that move with it. */
  run(batch: RowsRequest | FeedsRequest, listen: Listen): Promise<[BatchEnd, ArrayBuffer[]?]>;
  /** Drops the states of sessions that have ended. */
  endSessions(ids: readonly number[]): void;
}

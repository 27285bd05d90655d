import type { WireError } from '../../errors.js';
import type { Tensor } from '../../batch/tensor.js';
import type { ModelSignature } from '../model/model-signature.js';
import type { WireTensors, WireOutput, WireRows } from './transfer.js';
import type { BatchInfo, PartitionOptions, BatchListener } from '../batch-function.js';
import type { StateRows } from '../row-states.js';
import type { ContinuousPlan } from '../engine.js';

interface Task {
  readonly partition: number;
  readonly keys: readonly string[];
  readonly options: PartitionOptions;
}

export interface ModelTask extends Task {
  readonly opener: string;
  readonly name: string;
}

export interface FileTask extends Task {
  readonly file: string;
  readonly continuous?: ContinuousPlan | undefined;
}

export type WorkerTask = ModelTask | FileTask;

export interface WorkerHooks {
  /** Processes share no memory. */
  forProcess?(task: ModelTask): Promise<ModelTask>;
  threadEnded?(thread: number): void;
}

/** Feeds are in the inputs' order, results in the reply's. */
export interface TensorModel {
  readonly loaded: Required<Loaded>;
  /** Rows with turns are steps from their states. */
  run(
    feeds: readonly Tensor[],
    hooks: readonly string[],
    onHook: (name: string, value: unknown) => void,
    turns?: StateRows,
  ): Promise<Tensor[]>;
  forget(ids: readonly number[]): void;
}

export interface RowsRequest {
  readonly rows: WireRows;
  readonly info: BatchInfo;
}

export interface FeedsRequest {
  readonly feeds: WireTensors;
  readonly hooks: readonly string[];
  readonly turns?: StateRows | undefined;
}

/** Queued behind earlier batches. */
export interface Forget {
  readonly forget: readonly number[];
}

export type WorkerRequest =
  | RowsRequest
  | FeedsRequest
  | Forget
  | { readonly batch: number; readonly endedRows: readonly number[] }
  | { readonly batch: number; readonly acknowledged: number }
  | { readonly end: true }
  | { readonly halt: true }
  /** Replaces unreadable rows. */
  | { readonly unreadable: unknown };

/**
 * Modules in a worker, their libraries, and Node's watch mode send other messages over the same
 * channel.
 */
export interface Marked<Message> {
  readonly servingMessage: Message;
}

export function marked<Message>(message: Message): Marked<Message> {
  return { servingMessage: message };
}

export function ownOnly(listener: (message: never) => void): (value: unknown) => void {
  return (value) => {
    if (typeof value === 'object' && value !== null && 'servingMessage' in value) {
      listener(value.servingMessage as never);
    }
  };
}

/** Asks a process to revoke batches that have not begun. */
export interface RevokeRequest {
  /** Batches sent so far. */
  readonly revoke: number;
}

export interface RevokeReply {
  readonly revoked: number;
}

/** Failing providers come with reasons. */
export interface SessionProviders {
  readonly inUse: string;
  readonly missing: readonly string[];
}

/** Empty for a module file. */
export interface Loaded {
  readonly signature?: ModelSignature;
  readonly providers?: SessionProviders;
}

export type LoadResult = Loaded | { readonly error: WireError };

/** Batches count from 0 in the order of their requests. */
export type WorkerReply = { readonly batch: number } & (BatchProgress | BatchEnd);

export type BatchProgress =
  | { readonly hook: string; readonly value: WireOutput }
  | { readonly step: WireOutput; readonly metadata: unknown };

export type BatchEnd =
  | { readonly output: WireOutput; readonly metadata: unknown }
  /** Reply order; `spare` is the feeds' memory. */
  | { readonly reply: WireTensors; readonly spare?: readonly ArrayBuffer[] }
  | { readonly stepped: true }
  | { readonly error: WireError };

/** Limit, so that a generator can't fill the channel. */
export const STEPS_AHEAD = 64;

export interface ExitMessage {
  readonly failure: WireError | undefined;
}

/** File descriptor for a byte of each begun batch, which isn't lost when the process dies. */
export const MARKS = 4;

export interface WorkerExit {
  readonly code: number | null;
  readonly signal?: NodeJS.Signals | null;
  readonly cause?: unknown;
}

export type OnMessage = (
  message: LoadResult | WorkerReply | { readonly unreadable: unknown },
) => void;

/** Messages keep their order and arrive before the exit. */
export interface Channel {
  readonly name: 'thread' | 'process';
  readonly exited: Promise<WorkerExit>;
  /** Undefined if only replies show it. */
  readonly begun?: number;
  listen(onMessage: OnMessage): void;
  /** @throws if the message can't be cloned */
  post(request: WorkerRequest, transfer: readonly ArrayBuffer[]): void;
  /** Calls back with the number of revoked batches. */
  revoke(sent: number, onRevoked: (count: number) => void): void;
  /** Keeps the application's process alive. */
  ref(): void;
  unref(): void;
  /** Works even during a run; undefined if unsafe. */
  kill?(): void;
  /** Ends a process immediately, a thread on its next turn. */
  halt(): void;
}

/** The worker is done with `spare`. */
export type RunEnd = [end: BatchEnd, transfer?: ArrayBuffer[], spare?: ArrayBuffer[]];

export type Listen = (hooks: readonly string[], plainRows: boolean) => BatchListener;

export interface WorkerRunner {
  readonly loaded: Loaded;
  readonly isConcurrent?: boolean;
  run(batch: RowsRequest | FeedsRequest, listen: Listen): Promise<RunEnd>;
  forget(ids: readonly number[]): void;
}

import type { ResolvedBatchCost } from './batch-size.js';
import type { ModelIsolation, ShutdownOptions, ServingOptions } from './serving-definition.js';
import type { Supervision } from '../partitions/worker/supervised.partition.js';
import type { QueueOrder } from '../batching/row-queue.js';
import type { ModelPort } from '../partitions/model/model-signature.js';
import type { PartitionOptions } from '../partitions/batch-function.js';
import type { ContinuousPlan } from '../partitions/engine.js';

export interface KeyOptions {
  readonly batchSize: number;
  readonly batchTimeout: number;
  /** Rows of the pieces into which `run` cuts its input. */
  readonly runSize: number;
  /** Batches are padded to these sizes, in ascending order. */
  readonly allowedSizes?: readonly number[] | undefined;
  readonly latencyTarget?: number | undefined;
  /**
   * Rows of one run, for a model with a fixed batch size. A call of just as many rows is never
   * split.
   */
  readonly step?: number | undefined;
}

export interface RetryOptions {
  readonly idempotent: boolean;
  readonly isolateFailures: boolean;
  readonly retries: number;
}

export interface ResolvedRecovery extends RetryOptions, Supervision {
  readonly runTimeout: number | undefined;
}

export interface ResolvedQueue {
  readonly maxRows: number;
  readonly maxCost: number | undefined;
  readonly maxRowsPerCall: number;
  readonly maxBytesPerCall: number | undefined;
  readonly order: QueueOrder;
  readonly separateOrigins: boolean;
  /** True if a lane's replies leave in their calls' order. */
  readonly preservesOrder: boolean;
}

/** Lets a feature keep states on partitions. Each call has a turn on one of them. */
export interface StatesPlan {
  /** Names the owners of states in messages. */
  readonly kind: string;
  /** Milliseconds without a call until a state is dropped. */
  readonly idle: number;
  /** Why a call without a turn is refused. */
  outside(serving: string): Error;
}

export interface ResolvedServing {
  readonly name: string;
  readonly version: string;
  readonly runner: 'model' | 'external model' | 'function' | 'file' | 'class';
  /** Undefined if its definition leaves it open. */
  readonly isolation: ModelIsolation | undefined;
  readonly timeout: number | undefined;
  readonly queue: ResolvedQueue;
  readonly recovery: ResolvedRecovery;
  /** Undefined if calls have no state. */
  readonly states: StatesPlan | undefined;
  readonly shutdown: Required<ShutdownOptions>;
  readonly distribution: ServingDistribution;
  readonly partitions: readonly PartitionOptions[];
  readonly keys: ReadonlyMap<string, KeyOptions>;
  readonly otherKeys: KeyOptions;
  readonly batchCost: ResolvedBatchCost | undefined;
  readonly warmUp: readonly unknown[];
  /** True if the start compares rows of a model file alone and together. */
  readonly checkRows: boolean;
  /** Undefined if rows run in batches. */
  readonly continuous: ContinuousPlan | undefined;
  /** The declared rows of a serving without a model. */
  readonly template?: readonly ModelPort[] | undefined;
  /** Axes where we cut its outputs back to their rows' length, by path. */
  readonly cuts: Readonly<Record<string, number>>;
}

/** Options for calls from other nodes. */
export interface ServingDistribution {
  readonly enabled: boolean;
  readonly weight: number;
  readonly idempotent: boolean;
  /** Saturated beyond this many queued rows: two batches for each partition. */
  readonly saturation: number;
  readonly preprocess: ((input: unknown) => unknown) | undefined;
  readonly postprocess: ((output: unknown) => unknown) | undefined;
}

/** The callbacks on the caller's side, before and after the batch. */
export type Callbacks = Pick<
  ServingOptions,
  'name' | 'preprocess' | 'postprocess' | 'postprocessStream' | 'queue' | 'timeout'
>;

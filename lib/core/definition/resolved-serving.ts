import type { ResolvedBatchCost } from './batch-size.js';
import type {
  ReplyCacheOptions,
  ShutdownOptions,
  ServingOptions,
  SessionsOptions,
  VersionOptions,
} from './serving-definition.js';
import type { Isolation } from '../partitions/worker/worker.partition.js';
import type { Supervision } from '../partitions/worker/supervised.partition.js';
import type { QueueOrder } from '../batching/row-queue.js';
import type { ModelPort } from '../partitions/onnx/model-signature.js';
import type { PartitionOptions } from '../partitions/batch-function.js';
import type { SequenceLimits } from '../partitions/sequence/sequence-model.js';

export interface KeyOptions {
  readonly batchSize: number;
  readonly batchTimeout: number;
  /** Rows of the pieces into which `run` cuts its input. */
  readonly runSize: number;
  /** The sizes that batches are padded to, in ascending order. */
  readonly allowedSizes?: readonly number[] | undefined;
  readonly latencyTarget?: number | undefined;
  /**
   * The number of rows of one run, for a model with a fixed batch size. A call of just as many rows
   * is never split.
   */
  readonly step?: number | undefined;
}

/** Which failed batches run again. */
export interface RetryOptions {
  readonly idempotent: boolean;
  readonly isolateFailures: boolean;
  readonly retries: number;
}

/** The options of `recovery`, with their defaults. */
export interface ResolvedRecovery extends RetryOptions, Supervision {
  readonly runTimeout: number | undefined;
}

/** The queue's limits, and the order of its rows. */
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

/** Whether calls with the same input share answers, and how inputs are identified. */
export interface Sharing {
  readonly singleFlight: boolean;
  readonly keyOf: (input: unknown) => unknown;
  readonly cache: Required<ReplyCacheOptions> | undefined;
}

/** A definition with every default filled in. */
export interface ResolvedServing {
  readonly name: string;
  readonly version: string;
  readonly runner: 'model' | 'external model' | 'function' | 'file' | 'class';
  /** Undefined for functions, classes and external models. */
  readonly isolation: Isolation | 'none' | undefined;
  readonly timeout: number | undefined;
  readonly queue: ResolvedQueue;
  readonly recovery: ResolvedRecovery;
  /** Undefined where calls have no state. */
  readonly sessions: Required<SessionsOptions> | undefined;
  /** Undefined where calls share nothing. */
  readonly sharing: Sharing | undefined;
  readonly shutdown: Required<ShutdownOptions>;
  readonly distribution: ServingDistribution;
  readonly partitions: readonly PartitionOptions[];
  /** Each declared key's options, and other keys' options. */
  readonly keys: ReadonlyMap<string, KeyOptions>;
  readonly otherKeys: KeyOptions;
  readonly versions: Readonly<Record<string, VersionOptions>>;
  /** The file whose changes load it again. */
  readonly watch: string | undefined;
  readonly batchCost: ResolvedBatchCost | undefined;
  readonly warmUp: readonly unknown[];
  readonly sequence: SequenceLimits | undefined;
  /** The declared rows of a serving without a model. */
  readonly template?: readonly ModelPort[] | undefined;
  /** Axes where we cut its outputs back to their rows' length, by path. */
  readonly cuts: Readonly<Record<string, number>>;
}

/** The options for calls from other nodes. */
export interface ServingDistribution {
  readonly enabled: boolean;
  readonly weight: number;
  readonly idempotent: boolean;
  /** The queued rows beyond which it is saturated: two batches for each partition. */
  readonly saturation: number;
  readonly preprocess: ((input: unknown) => unknown) | undefined;
  readonly postprocess: ((output: unknown) => unknown) | undefined;
}

/**
 * The callbacks that run on the caller's side: `preprocess` before the batch, `postprocess` after
 * it.
 */
export type Callbacks = Pick<
  ServingOptions,
  'name' | 'preprocess' | 'postprocess' | 'postprocessStream' | 'queue' | 'timeout'
>;

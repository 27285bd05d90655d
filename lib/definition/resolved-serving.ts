import type { ReplyCacheOptions } from './serving-definition.js';
import type { Supervision } from '../partitions/worker/supervised.partition.js';
import type { QueueOrder } from '../batching/priority-queue.js';
import type { ModelPort } from '../partitions/onnx/model-signature.js';
import type { PartitionOptions } from '../partitions/batch-function.js';

/** The options of a key. */
export interface KeyOptions {
  readonly batchSize: number;
  readonly batchTimeout: number;
  /** The size of the pieces that `run` cuts its input into. */
  readonly runSize: number;
  /** The sizes that batches are padded to, in ascending order. */
  readonly allowedSizes?: readonly number[] | undefined;
  /**
   * The number of rows of one run, for a model with a fixed batch size. A call of just as many rows
   * is never split.
   */
  readonly step?: number | undefined;
}

/** Which failed batches run again. */
export interface RetryOptions {
  /** A batch can run twice without harm. */
  readonly idempotent: boolean;
  /** A batch whose function fails runs again in halves, until the failing row fails alone. */
  readonly isolateFailures: boolean;
  /** How often a batch runs again whose partition was lost. */
  readonly retries: number;
}

/** Whether calls with the same input share answers, and how inputs are identified. */
export interface Sharing {
  readonly singleFlight: boolean;
  readonly identify: (input: unknown) => unknown;
  readonly cache: Required<ReplyCacheOptions> | undefined;
}

/** A definition with every default filled in. */
export interface ResolvedServing extends Supervision {
  readonly name: string;
  readonly maxQueue: number;
  readonly maxQueueCost: number | undefined;
  readonly timeout: number | undefined;
  readonly order: QueueOrder;
  readonly idempotent: boolean;
  readonly isolateFailures: boolean;
  readonly retries: number;
  readonly maxRows: number;
  readonly maxBytes?: number | undefined;
  /** The options of each partition. */
  readonly partitions: readonly PartitionOptions[];
  /** The options of each declared key, and of other keys. */
  readonly keys: ReadonlyMap<string, KeyOptions>;
  readonly otherKeys: KeyOptions;
  readonly separateOrigins: boolean;
  /** Undefined where calls share nothing. */
  readonly sharing: Sharing | undefined;
  readonly warmUp: readonly unknown[];
  /** The declared rows of a serving without a model. */
  readonly template?: readonly ModelPort[] | undefined;
  readonly runTimeout?: number | undefined;
  readonly drainOnShutdown: boolean;
  readonly drainTimeout: number;
  readonly distribution: ServingDistribution;
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

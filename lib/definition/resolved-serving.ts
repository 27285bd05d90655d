import type { ReplyCacheOptions } from './serving-definition.js';
import type { Supervision } from '../partitions/worker/supervised.partition.js';
import type { QueueOrder } from '../batching/priority-queue.js';
import type { ModelPort } from '../partitions/onnx/model-signature.js';
import type { PartitionOptions } from '../partitions/batch-function.js';

/** What can differ by key. */
export interface KeyOptions {
  readonly batchSize: number;
  readonly batchTimeout: number;
  /** The size of the pieces that `run` cuts its input into. */
  readonly runSize: number;
  /** The sizes that batches are padded to, rising. */
  readonly allowedSizes?: readonly number[] | undefined;
  /**
   * The rows of one run of a model that takes several at a time. A call of just these is never
   * split.
   */
  readonly step?: number | undefined;
}

/** Which batches that have failed run again. */
export interface RetryOptions {
  /** A batch can run twice and do no harm. */
  readonly idempotent: boolean;
  /** A batch whose function fails runs again in halves, until the row at fault fails alone. */
  readonly isolateFailures: boolean;
  /** How often a batch runs again whose partition was lost. */
  readonly retries: number;
}

/** What calls that ask the same share, and what tells them from others. */
export interface Sharing {
  readonly singleFlight: boolean;
  readonly identify: (input: unknown) => unknown;
  readonly cache: Required<ReplyCacheOptions> | undefined;
}

/** A definition with every default filled in: what the rest of the code reads. */
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
  /** The options of each key, and of keys that are not known. */
  readonly keys: ReadonlyMap<string, KeyOptions>;
  readonly otherKeys: KeyOptions;
  readonly separateOrigins: boolean;
  /** Only where calls share anything. */
  readonly sharing: Sharing | undefined;
  readonly warmUp: readonly unknown[];
  /** What rows must be like, where that is declared; a model says it itself. */
  readonly template?: readonly ModelPort[] | undefined;
  readonly runTimeout?: number | undefined;
  readonly drainOnShutdown: boolean;
  readonly drainTimeout: number;
  readonly distribution: ServingDistribution;
}

/** How other nodes call a serving. */
export interface ServingDistribution {
  readonly enabled: boolean;
  readonly weight: number;
  readonly idempotent: boolean;
  /** The rows in the queue from which on it cannot keep up: two batches for each partition. */
  readonly saturation: number;
  readonly preprocess: ((input: unknown) => unknown) | undefined;
  readonly postprocess: ((output: unknown) => unknown) | undefined;
}

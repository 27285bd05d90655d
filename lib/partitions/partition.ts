import type { Batch } from '../batch/batch.js';
import type { Container } from '../batch/container.js';

/** What a batch function gives back: one result per row, as a list or as tensors with the rows on their batch axis. */
export type BatchOutput = Container | readonly unknown[];

/** The output of a batch and what the server has to say beside it. */
export interface BatchResult<Output = BatchOutput> {
  readonly output: Output;
  /** Handed to `postprocess` of every call with rows in the batch. */
  readonly metadata?: unknown;
}

/** One session: runs one batch at a time. */
export interface Partition {
  /** How many full batches may be handed over while one runs: 1 where the transfer hides behind the run, else 0. */
  readonly prefetch: number;
  /** Why it can run nothing any more. */
  readonly lost?: Error | undefined;
  /** Rejects when the batch fails; the partition then goes on with the next. */
  run(batch: Batch): Promise<BatchResult>;
  /** Ends it after the batches it holds. */
  close(): Promise<void>;
}

/** The options of one partition: those of the serving's `session` with what is particular to this one. */
export type PartitionOptions = Readonly<Record<string, unknown>>;

/** What a batch function is told about the batch beside its rows. */
export interface BatchContext {
  readonly key: string;
  /** Rows, padding not counted. */
  readonly size: number;
  readonly padding: number;
  /** The index of the partition that runs it. */
  readonly partition: number;
}

export function contextOf({ key, size, padding }: Batch, partition: number): BatchContext {
  return { key, size, padding, partition };
}

/** Runs one batch: `rows` is a list of plain values, or a container of tensors with the rows on axis 0. */
export type BatchFunction<Rows = never, Output = unknown> = (
  rows: Rows,
  batch: BatchContext,
) => Output | WithMetadata<Output> | Promise<Output | WithMetadata<Output>>;

/** Where and for what a batch function is built. */
export interface BatchFunctionSite {
  readonly key: string;
  /** The index of the partition, and its own options. */
  readonly partition: number;
  readonly options: PartitionOptions;
}

/** Builds the batch function of one partition and key; called once for each when the serving starts. */
export type BatchFunctionFactory<Rows = never, Output = unknown> = (
  site: BatchFunctionSite,
) => BatchFunction<Rows, Output> | Promise<BatchFunction<Rows, Output>>;

/** Marks an output that comes with metadata; made by {@link withMetadata}. */
export class WithMetadata<Output> implements BatchResult<Output> {
  constructor(
    readonly output: Output,
    readonly metadata: unknown,
  ) {}
}

/** Returned by a batch function that has something to say beside its output, for `postprocess` to read. */
export function withMetadata<Output>(output: Output, metadata: unknown): WithMetadata<Output> {
  return new WithMetadata(output, metadata);
}

import type { Batch } from '../batch/batch.js';
import type { Container } from '../batch/container.js';
import type { BatchContext, BatchFunction, BatchOutput } from '../partitions/partition.js';

/** What a batch of such rows looks like to its function: tensors stay tensors, of plain values there is a list. */
export type RowsOf<Row> = unknown extends Row ? unknown[] : [Row] extends [Container] ? Row : Exclude<Row, Batch>[];

/** What a batch function may return for callers who each get such a result. */
export type ResultsOf<Result> = unknown extends Result
  ? BatchOutput
  : [Result] extends [Container]
    ? Result | readonly (Result | Error)[]
    : readonly (Result | Error)[];

/** A batch function whose types are known; as a generator it yields whatever its steps are. */
export type TypedBatchFunction<Rows, Result> = (
  rows: Rows,
  batch: BatchContext,
) => ReturnType<BatchFunction<Rows, ResultsOf<Result>>> | AsyncGenerator<unknown, void> | Generator<unknown, void>;

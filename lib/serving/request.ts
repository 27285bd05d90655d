import { Batch } from '../batch/batch.js';
import type { Request, Row } from '../batching/batcher.js';
import { isError } from '../errors.js';
import type { BatchOutput, BatchResult } from '../partitions/partition.js';
import { asOutput } from './output.js';

/** A run of consecutive rows of one request that found themselves in the same batch. */
export interface Part {
  readonly request: BatchRequest;
  /** Where the run starts in its request. */
  readonly offset: number;
  readonly count: number;
}

/** A call on its way through the batcher: its rows may run in several batches, and finish in any order. */
export class BatchRequest implements Request {
  arrivedAt = 0;
  readonly lane: string;
  readonly reply: Promise<BatchResult>;
  private readonly answers: { offset: number; rows: Batch; metadata: unknown }[] = [];
  private missing: number;
  private resolve!: (result: BatchResult) => void;
  private reject!: (error: unknown) => void;

  constructor(readonly batch: Batch) {
    this.lane = batch.isPlain ? batch.key : `${batch.key}\0${batch.signature}`;
    this.missing = batch.size;
    this.reply = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
  }

  /** Takes the output rows for the part at `offset`; with the last part the call is answered. */
  answer(offset: number, rows: Batch, metadata: unknown): void {
    this.answers.push({ offset, rows, metadata });
    this.missing -= rows.size;
    if (this.missing === 0) {
      this.finish();
    }
  }

  fail(error: unknown): void {
    this.reject(error);
  }

  private finish(): void {
    if (this.answers.length > 1) {
      this.answers.sort((a, b) => a.offset - b.offset);
    }
    try {
      const output = joinOutput(this.answers.map(({ rows }) => rows));
      this.resolve({ output, metadata: this.answers[0]!.metadata });
    } catch (error) {
      this.reject(error);
    }
  }
}

/** The rows in storage of their own; throws the error that a batch function put in place of a row's result. */
export function joinOutput(pieces: readonly Batch[]): BatchOutput {
  const output = asOutput(() => Batch.merge(pieces)).release();
  const error = Array.isArray(output) ? output.find(isError) : undefined;
  if (error) {
    throw error;
  }
  return output;
}

/** The rows of a batch as runs of the requests they belong to, in their order. */
export function partsOf(rows: readonly Row<BatchRequest>[]): Part[] {
  const parts: Part[] = [];
  for (let start = 0; start < rows.length;) {
    const { request, index } = rows[start]!;
    let end = start + 1;
    while (end < rows.length && rows[end]!.request === request) {
      end++;
    }
    parts.push({ request, offset: index, count: end - start });
    start = end;
  }
  return parts;
}

/** The batch that the parts make up. */
export function batchOf(parts: readonly Part[]): Batch {
  return Batch.merge(parts.map(({ request, offset, count }) => request.batch.slice(offset, offset + count)));
}

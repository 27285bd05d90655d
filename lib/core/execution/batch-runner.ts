import type { BatchObserver, BatchOutcome, BatchRecord } from '../batching/batcher.js';
import { type Part, sizeOf } from '../batching/queued-request.js';
import type { Window } from '../batching/ready-queue.js';
import {
  BatchFailedError,
  InvalidOutputError,
  isA,
  isServingError,
  messageOf,
  PartitionLostError,
} from '../errors.js';
import type { OpenedEngine } from '../partitions/engine.js';
import { axesOf } from '../partitions/onnx/model-signature.js';
import {
  type Partition,
  RejectedRowsError,
  ReplyTooLargeError,
  RevokedError,
} from '../partitions/partition.js';
import { batchObserver, type EventHub } from '../events/event-hub.js';
import { BatchRun } from './batch-run.js';
import { OutputReader } from './output-rows.js';
import { inOriginOf } from '../context/caller-context.js';
import { type RetryState, retriesFor } from './retry-policy.js';
import type { BatchRequest } from './request.js';
import type { RowLengths } from './row-lengths.js';
import type { BatchLabels } from '../events/serving-event.js';
import type { RetryOptions } from '../definition/resolved-serving.js';

type Parts = readonly Part<BatchRequest>[];

/** Runs batches on the partitions of a serving and settles the requests with rows in them. */
export class BatchRunner {
  readonly observer: BatchObserver<BatchRequest>;
  private readonly outputs: OutputReader;
  /** The error that ends running generators, once {@link terminate} was called. */
  private cut: Error | undefined;

  constructor(
    private readonly name: string,
    private readonly retryOptions: RetryOptions,
    private readonly opened: OpenedEngine,
    private readonly events: EventHub,
    /** In a serving whose rows differ in length. */
    private readonly lengths?: RowLengths,
  ) {
    this.outputs = new OutputReader(axesOf(opened.signature?.outputs ?? []));
    this.observer = batchObserver(events, (record) => this.labelsOf(record));
  }

  /**
   * Runs the rows of a window as one batch of at most the window's size, padding included. The
   * outcome holds the rows that run again.
   */
  readonly dispatch = (
    { parts, size, retryState }: Window<BatchRequest>,
    partition: number,
  ): Promise<BatchOutcome<BatchRequest>> =>
    this.runParts(parts, partition, size, retryState as RetryState | undefined);

  /** Runs the request to find errors. Its output is dropped. */
  async tryOut(request: BatchRequest, index: number, partition: Partition): Promise<unknown> {
    request.isOver = true;
    const { size } = request;
    const { error } = await this.runParts(
      [{ request, offset: 0, count: size }],
      index,
      size,
      undefined,
      partition,
    );
    return error;
  }

  /**
   * Ends running generators at their next step. Batches that are lost with their partition fail
   * with this error.
   */
  terminate(error: Error): void {
    this.cut = error;
  }

  private runParts(
    parts: Parts,
    partition: number,
    largest: number,
    retryState?: RetryState,
    runner: Partition = this.opened.partitions[partition]!,
  ): Promise<BatchOutcome<BatchRequest>> {
    let run: BatchRun;
    try {
      run = new BatchRun(parts, this.outputs, largest, () => this.cut, this.lengths);
    } catch (cause) {
      const error = this.failedBatch(cause, sizeOf(parts));
      parts.forEach(({ request, offset, count }) => request.failPart(offset, count, error));
      return Promise.resolve({ error });
    }
    return this.runBatch(run, parts, partition, runner, retryState);
  }

  private async runBatch(
    run: BatchRun,
    parts: Parts,
    partition: number,
    runner: Partition,
    retryState: RetryState | undefined,
  ): Promise<BatchOutcome<BatchRequest>> {
    const info = run.info(partition);
    const runBatch = () => runner.run(run.batch, info, run);
    try {
      run.checkRows(runner);
      const handOut = run.end(await inOriginOf(parts[0]!.request.lane, runBatch));
      return { ...run.outcome, settle: () => this.settle(run, handOut) };
    } catch (cause) {
      if (isA(cause, RejectedRowsError)) {
        const others = run.without(cause);
        const [error] = cause.faults.values();
        return {
          ...run.outcome,
          error,
          ...(others.length > 0 && { retries: [{ parts: others, retryState }] }),
        };
      }
      if (isA(cause, RevokedError)) {
        return { ...run.outcome, revoked: true, retries: [{ parts, retryState }] };
      }
      const error = this.batchError(cause, run.batch.size);
      const retries =
        run.hasEmitted || this.cut ? [] : retriesFor(error, parts, retryState, this.retryOptions);
      if (retries.length > 0) {
        run.willRetry(error);
        return { ...run.outcome, error, retries };
      }
      return { ...run.outcome, error, settle: () => run.fail(error) };
    }
  }

  /** The memory of the output may be gone by now. That fails its callers, and not the batcher. */
  private settle(run: BatchRun, handOut: () => void): void {
    try {
      handOut();
    } catch (cause) {
      run.fail(this.batchError(cause, run.batch.size));
    }
  }

  private batchError(cause: unknown, size: number): unknown {
    if (this.cut && isA(cause, PartitionLostError)) {
      return this.cut;
    }
    if (this.opened.throwsAsIs) {
      return cause;
    }
    // A subclass: the retry policy looks for it.
    const isTooLarge: boolean = isA(cause, ReplyTooLargeError);
    if (isA(cause, InvalidOutputError) && !isTooLarge) {
      const { message, cause: reason } = cause;
      return new InvalidOutputError(
        `Serving "${this.name}": ${message}`,
        reason === undefined ? {} : { cause: reason },
      );
    }
    return isServingError(cause) ? cause : this.failedBatch(cause, size);
  }

  private failedBatch(cause: unknown, size: number): BatchFailedError {
    return new BatchFailedError(
      `Serving "${this.name}": a batch of ${size} rows failed: ${messageOf(cause)}`,
      { cause },
    );
  }

  private labelsOf({ parts }: BatchRecord<BatchRequest>): BatchLabels {
    const { key, origin } = parts[0]!.request.lane;
    const calls = parts.flatMap(({ request }) => request.watch?.calls ?? []);
    const { version } = this.events;
    return { serving: this.name, version, key, origin, calls: [...new Set(calls)] };
  }
}

import type { Retry } from '../batching/batcher.js';
import { type Part, sizeOf } from '../batching/queued-request.js';
import {
  InvalidOutputError,
  messageOf,
  PartitionLostError,
  RunTimeoutError,
  ServingLoadError,
} from '../errors.js';
import {
  LostInTransitError,
  NotStartedError,
  OutputLostError,
  TooLargeToSendError,
} from '../partitions/partition.js';
import type { BatchRequest } from './request.js';
import { type RetryOptions } from '../definition/resolved-serving.js';

/** What is known of rows that run again. */
export interface RetryState {
  /** How many partitions were lost with them. */
  readonly losses: number;
  /**
   * How many more runs the search for the row at fault may take; shared by all batches that look
   * for it.
   */
  readonly search: { runs: number };
}

/**
 * The batches in which the rows of one that has failed are to run again; none where they have
 * failed for good.
 *
 * Who was not begun with runs elsewhere; what its partition has died of when it received it, no
 * more often than `retries` says. What is too much for one message runs in halves. Where the output
 * was at fault, no rows are. What had come to its end when its output was lost runs again, and is
 * not to blame. What was lost with its partition runs again whole, since it need not be to blame;
 * and in halves from then on, since it may be. What failed by itself runs in halves: a binary
 * search, which ends when it has taken twice as many runs as one row at fault can ask for, since
 * then it is not the rows that are at fault.
 */
export function retriesFor(
  error: unknown,
  parts: readonly Part<BatchRequest>[],
  retryState: RetryState | undefined,
  options: RetryOptions,
): readonly Retry<BatchRequest>[] {
  const rows = sizeOf(parts);
  const known = retryState ?? { losses: 0, search: { runs: 4 * Math.ceil(Math.log2(rows)) } };
  if (error instanceof TooLargeToSendError) {
    return inHalves(parts, rows, known);
  }
  const isOnTheWay = error instanceof LostInTransitError;
  if (error instanceof NotStartedError && !isOnTheWay) {
    return [{ parts, retryState: known }];
  }
  if (
    !(options.idempotent || isOnTheWay) ||
    error instanceof ServingLoadError ||
    error instanceof InvalidOutputError
  ) {
    return [];
  }
  if (error instanceof OutputLostError) {
    return [{ parts, retryState: known }];
  }
  if (error instanceof PartitionLostError || error instanceof RunTimeoutError) {
    const next = { ...known, losses: known.losses + 1 };
    if (next.losses > options.retries) {
      return [];
    }
    const halves = next.losses === 1 ? [] : inHalves(parts, rows, next);
    return halves.length > 0 ? halves : [{ parts, retryState: next }];
  }
  if (rows === 1 || known.search.runs < 2 || !(options.isolateFailures || isOutOfMemory(error))) {
    return [];
  }
  known.search.runs -= 2;
  return inHalves(parts, rows, known);
}

/** So that rows, too, share what a batch cannot have. */
function isOutOfMemory(error: unknown): boolean {
  return /out of memory|bad_alloc|failed to allocate/i.test(messageOf(error));
}

/**
 * Two batches of the rows; nothing where that would cut off rows from those that they must run
 * with.
 */
function inHalves(
  parts: readonly Part<BatchRequest>[],
  rows: number,
  retryState: RetryState,
): readonly Retry<BatchRequest>[] {
  const cut = cutOf(parts, rows);
  const first: Part<BatchRequest>[] = [];
  const second: Part<BatchRequest>[] = [];
  let start = 0;
  for (const { request, offset, count } of parts) {
    const before = Math.min(Math.max(cut - start, 0), count);
    start += count;
    if (before > 0) {
      first.push({ request, offset, count: before });
    }
    if (before < count) {
      second.push({ request, offset: offset + before, count: count - before });
    }
  }
  return first.length === 0 || second.length === 0
    ? []
    : [first, second].map((half) => ({ parts: half, retryState }));
}

/**
 * The middle, or where a request lies there that must run whole, the end of it that is inside the
 * batch.
 */
function cutOf(parts: readonly Part<BatchRequest>[], rows: number): number {
  const middle = Math.ceil(rows / 2);
  let start = 0;
  for (const { request, count } of parts) {
    const end = start + count;
    if (request.whole && start < middle && middle < end) {
      return end < rows ? end : start;
    }
    start = end;
  }
  return middle;
}

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
  ReplyTooLargeError,
  ServerBusyError,
  TooLargeToSendError,
} from '../partitions/partition.js';
import type { BatchRequest } from './request.js';
import { type RetryOptions } from '../definition/resolved-serving.js';

export interface RetryState {
  readonly losses: number;
  /** Runs left to search for the failing row, shared by the search's batches. */
  readonly search: { runs: number };
}

/**
 * The batches that run a failed batch's rows again; empty if the failure is final.
 *
 * - A batch that didn't begin runs elsewhere. If its arrival may have killed the partition, that
 *   counts as a loss.
 * - A batch too large for one message runs in halves.
 * - An output too large for one message has run, so only an idempotent batch runs again, in halves.
 * - Any other invalid output is final: rows don't cause it.
 * - A batch whose output was lost runs again; it didn't cause the loss.
 * - A batch that a server had no room for runs again whole: fewer rows are as many requests.
 * - A batch lost with its partition runs again whole, and in halves after the second loss, which it
 *   may have caused.
 * - A batch that failed by itself runs in halves: a binary search for the failing row. It ends
 *   after twice the runs that one failing row needs, since then the rows aren't the cause.
 * - If some of its rows can't run again, they may include the failing row, so the others run whole.
 */
export function retriesFor(
  error: unknown,
  parts: readonly Part<BatchRequest>[],
  retryState: RetryState | undefined,
  options: RetryOptions,
  /** Includes rows that can't run again, since their callers received output. */
  all = sizeOf(parts),
): readonly Retry<BatchRequest>[] {
  const rows = sizeOf(parts);
  if (rows === 0) {
    return [];
  }
  const known = retryState ?? { losses: 0, search: { runs: 4 * Math.ceil(Math.log2(all)) } };
  if (error instanceof TooLargeToSendError) {
    return inHalves(parts, rows, known);
  }
  const isOnTheWay = error instanceof LostInTransitError;
  if (error instanceof NotStartedError && !isOnTheWay) {
    return [{ parts, retryState: known }];
  }
  if (!(options.idempotent || isOnTheWay) || error instanceof ServingLoadError) {
    return [];
  }
  if (error instanceof InvalidOutputError) {
    return error instanceof ReplyTooLargeError ? inHalves(parts, rows, known) : [];
  }
  if (error instanceof OutputLostError) {
    return [{ parts, retryState: known }];
  }
  if (error instanceof PartitionLostError || error instanceof RunTimeoutError) {
    const next = { ...known, losses: known.losses + 1 };
    if (next.losses > options.retries) {
      return [];
    }
    const isWhole = next.losses === 1 || error instanceof ServerBusyError;
    const halves = isWhole ? [] : inHalves(parts, rows, next);
    return halves.length > 0 ? halves : [{ parts, retryState: next }];
  }
  const isSearched = options.isolateFailures || isOutOfMemory(error);
  if (all === 1 || known.search.runs < 2 || !isSearched) {
    return [];
  }
  known.search.runs -= 2;
  if (rows < all) {
    return [{ parts, retryState: known }];
  }
  return inHalves(parts, rows, known);
}

/** Half of the rows may fit. */
function isOutOfMemory(error: unknown): boolean {
  return /out of memory|bad_alloc|failed to allocate/i.test(messageOf(error));
}

/** Empty if the cut would separate rows that must run together. */
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
 * Moves the middle to the end of a request that must run whole, or to its start if the request ends
 * the batch.
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

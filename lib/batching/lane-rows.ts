import type { Part, QueuedRequest } from './queued-request.js';

/** The ready rows of one lane, in the order in which they run. */
export interface LaneRows<R extends QueuedRequest> extends Iterable<Part<R>> {
  /** The rows that a caller waits for. */
  readonly size: number;
  /** Adds a part. The parts of one request arrive in order. */
  add(part: Part<R>): void;
  /** Whether there are rows of at least this priority. */
  reaches(priority: number, now: number): boolean;
  /** Takes the rows of a batch of at most `room` rows, which will have run at `until`. */
  take(room: number, now: number, until?: number): Part<R>[];
  /** Removes the rows of a request that is over. */
  leave(request: R): void;
}

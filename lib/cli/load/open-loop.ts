import { createHistogram, type RecordableHistogram } from 'node:perf_hooks';
import { setImmediate as turn, setTimeout as delay } from 'node:timers/promises';

/** A load whose calls arrive at random times; they do not wait for earlier answers. */
export interface OpenLoop {
  /** Calls per second, on average. */
  readonly rate: number;
  /** Seconds in which calls are sent. */
  readonly duration: number;
  /** Makes one call. */
  readonly call: () => Promise<unknown>;
  /** Calls that wait for their answer at most; others are not sent. */
  readonly mostOutstanding: number;
  /** Numbers from 0 to 1, for the times between arrivals. */
  readonly random?: () => number;
}

/** The result of a load. Times are microseconds, counted from when a call was due. */
export interface LoadResult {
  /** Calls per second that were due. */
  readonly rate: number;
  readonly answered: number;
  /** Calls that the serving did not take, or not in time. */
  readonly refused: number;
  readonly failed: number;
  /** Calls that were due and not sent, since too many waited for their answer. */
  readonly unsent: number;
  /** Seconds from the first call to the last answer. */
  readonly seconds: number;
  readonly latency: RecordableHistogram;
  /** How long after it was due a call was sent. */
  readonly lateness: RecordableHistogram;
  /** The error of the first call that failed. */
  readonly error?: unknown;
}

/**
 * Sends calls at random times, as independent clients do (a Poisson process), and waits for their
 * answers. A call that waits for others to be sent has its latency counted from when it was due: a
 * closed loop would leave out the waiting that a slow server causes (coordinated omission; G. Tene,
 * https://github.com/giltene/wrk2).
 */
export async function openLoop(load: OpenLoop): Promise<LoadResult> {
  const { rate, duration, call, mostOutstanding, random = Math.random } = load;
  const latency = createHistogram();
  const lateness = createHistogram();
  const counts = { answered: 0, refused: 0, failed: 0, unsent: 0 };
  let error: unknown;
  const outstanding = new Set<Promise<void>>();
  const ask = async (due: number): Promise<void> => {
    recordSince(lateness, due);
    try {
      await call();
      counts.answered++;
      recordSince(latency, due);
    } catch (reason) {
      if (isRefusal(reason)) {
        counts.refused++;
      } else {
        counts.failed++;
        error ??= reason;
      }
    }
  };
  const send = (due: number): void => {
    const answered = ask(due).finally(() => outstanding.delete(answered));
    outstanding.add(answered);
  };
  const begin = performance.now();
  const end = begin + duration * 1000;
  let due = begin;
  while (due < end) {
    const now = performance.now();
    for (; due <= now && due < end; due += (-Math.log(1 - random()) / rate) * 1000) {
      if (outstanding.size < mostOutstanding) {
        send(due);
      } else {
        counts.unsent++;
      }
    }
    await untilDue(due);
  }
  await Promise.all(outstanding);
  const seconds = (performance.now() - begin) / 1000;
  return { rate, ...counts, seconds, latency, lateness, error };
}

/** Timers have milliseconds; a shorter wait takes turns of the event loop. */
function untilDue(due: number): Promise<unknown> {
  const wait = due - performance.now();
  return wait > 2 ? delay(wait - 1) : turn();
}

/** A histogram takes whole numbers from 1 on. */
function recordSince(histogram: RecordableHistogram, due: number): void {
  histogram.record(Math.max(1, Math.round((performance.now() - due) * 1000)));
}

/** An answer that the server is too busy: 503, or 504 for one that would be too late. */
function isRefusal(reason: unknown): boolean {
  return (
    typeof reason === 'object' &&
    reason !== null &&
    'statusCode' in reason &&
    (reason.statusCode === 503 || reason.statusCode === 504)
  );
}

/** The latency of that share of the calls, in milliseconds. */
export function percentile({ latency }: LoadResult, share: number): number {
  return latency.percentile(share) / 1000;
}

/** Answers per second. */
export function answeredPerSecond({ answered, seconds }: LoadResult): number {
  return answered / seconds;
}

/**
 * Whether the generator sent its calls so late that the latency is not that of the serving: the
 * lateness at the 99th percentile is a tenth of the latency there, and above 2 ms.
 */
export function isGeneratorLate({ latency, lateness }: LoadResult): boolean {
  const late = lateness.percentile(99);
  return late > 2000 && late > latency.percentile(99) / 10;
}

/** What `(late)` beside a result means. */
export const LATE =
  '(late): calls were sent later than they were due, since this process or machine was busy; such ' +
  'a figure is a lower bound.';

/** The figures of a result, in milliseconds and calls, for programs. */
export function loadAsJson(load: LoadResult): object {
  const { rate, answered, refused, failed, unsent } = load;
  return {
    rate,
    answeredPerSecond: answeredPerSecond(load),
    answered,
    refused,
    failed,
    unsent,
    p50: percentile(load, 50),
    p90: percentile(load, 90),
    p99: percentile(load, 99),
    p999: percentile(load, 99.9),
    most: load.latency.max / 1000,
    late: isGeneratorLate(load),
  };
}

/** Runs `callers` callers, each of which waits for its answer; returns the answers per second. */
export async function closedLoop(
  call: () => Promise<unknown>,
  callers: number,
  seconds: number,
): Promise<number> {
  const begin = performance.now();
  const end = begin + seconds * 1000;
  let answered = 0;
  const caller = async (): Promise<void> => {
    while (performance.now() < end) {
      await call();
      answered++;
    }
  };
  await Promise.all(Array.from({ length: callers }, caller));
  return (answered * 1000) / (performance.now() - begin);
}

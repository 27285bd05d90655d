import { createHistogram, type RecordableHistogram } from 'node:perf_hooks';
import { setImmediate as turn, setTimeout as delay } from 'node:timers/promises';

export interface OpenLoop {
  /** Average calls per second. */
  readonly rate: number;
  /** Seconds. */
  readonly duration: number;
  readonly call: () => Promise<unknown>;
  /** Most unanswered calls; others are not sent. */
  readonly mostOutstanding: number;
  /** From 0 to 1. */
  readonly random?: () => number;
}

/** Times are in microseconds from when a call was due. */
export interface LoadResult {
  /** Calls due per second. */
  readonly rate: number;
  readonly answered: number;
  /** Rejected, or too late to answer. */
  readonly refused: number;
  readonly failed: number;
  /** Due, but too many waited. */
  readonly unsent: number;
  /** Seconds from the first call to the last answer. */
  readonly seconds: number;
  readonly latency: RecordableHistogram;
  readonly lateness: RecordableHistogram;
  readonly error?: unknown;
}

/**
 * Sends calls like independent clients (a Poisson process). Latency counts from when a call was
 * due: a closed loop would hide waiting for a slow server (coordinated omission; G. Tene,
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

/** Timers count milliseconds; shorter waits take turns of the event loop. */
function untilDue(due: number): Promise<unknown> {
  const wait = due - performance.now();
  return wait > 2 ? delay(wait - 1) : turn();
}

/** Histograms take whole numbers from 1. */
function recordSince(histogram: RecordableHistogram, due: number): void {
  histogram.record(Math.max(1, Math.round((performance.now() - due) * 1000)));
}

/** Status 503: too busy; 504: too late to answer. */
function isRefusal(reason: unknown): boolean {
  return (
    typeof reason === 'object' &&
    reason !== null &&
    'statusCode' in reason &&
    (reason.statusCode === 503 || reason.statusCode === 504)
  );
}

/** Milliseconds. */
export function percentile({ latency }: LoadResult, share: number): number {
  return latency.percentile(share) / 1000;
}

export function answeredPerSecond({ answered, seconds }: LoadResult): number {
  return answered / seconds;
}

/** True if calls were too late to measure the serving. */
export function isGeneratorLate({ latency, lateness }: LoadResult): boolean {
  const late = lateness.percentile(99);
  return late > 2000 && late > latency.percentile(99) / 10;
}

export const LATE =
  '(late): calls were sent later than they were due, since this process or machine was busy; such ' +
  'a figure is a lower bound.';

/** Times are in milliseconds. */
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

/** Milliseconds from a refusal to the caller's next call. */
const PAUSE = 5;

/** Calls again after each answer, and a moment after a refusal. Returns answers per second. */
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
      try {
        await call();
        answered++;
      } catch (reason) {
        if (!isRefusal(reason)) {
          throw reason;
        }
        await delay(PAUSE);
      }
    }
  };
  await Promise.all(Array.from({ length: callers }, caller));
  return (answered * 1000) / (performance.now() - begin);
}

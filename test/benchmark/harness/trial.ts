import { monitorEventLoopDelay } from 'node:perf_hooks';
import { type Arrivals, arrive } from './arrivals.js';
import { quantile } from './statistics.js';

export interface OpenTrial extends Arrivals {
  /**
   * Milliseconds from its arrival after which nobody wants the answer of a call any more; so long
   * it also takes until calls count.
   */
  readonly patience: number;
}

/** What became of calls that came whatever became of them. */
export interface Trial {
  /** Calls a second that came, and that were answered in time. */
  readonly offered: number;
  readonly good: number;
  /** The part of the answered that were answered in time. */
  readonly share: number;
  /** Milliseconds from the arrival to the answer, of those that were answered. */
  readonly p50: number;
  readonly p99: number;
  /** Calls a second that failed, by the code of their error. */
  readonly failed: ReadonlyMap<string, number>;
  /**
   * p99 of the milliseconds from the arrival to a refusal: those who were told at once, and not
   * when their time was over.
   */
  readonly refusal: number;
  /** p99 of the event-loop delay, in milliseconds. */
  readonly delay: number;
}

interface Outcome {
  readonly arrival: number;
  readonly end: number;
  readonly code: string | undefined;
}

const LATE = 'SERVING_DEADLINE_EXCEEDED';

/**
 * Makes calls by a Poisson process. All times count from the arrival, so a stall is charged to all
 * who come meanwhile.
 */
export async function openTrial(
  load: OpenTrial,
  call: (arrival: number) => Promise<unknown>,
): Promise<Trial> {
  const { rate, seconds, patience } = load;
  const outcomes: Outcome[] = [];
  const calls: Promise<void>[] = [];
  const from = performance.now() + patience;
  const until = from + seconds * 1000;
  const delay = monitorEventLoopDelay({ resolution: 1 });
  delay.enable();
  await arrive({ rate, seconds: seconds + patience / 1000 }, (arrival) => {
    const settle = (code?: string): unknown =>
      outcomes.push({ arrival, end: performance.now(), code });
    calls.push(
      call(arrival).then(
        () => void settle(),
        (error: { code?: string }) => void settle(error.code ?? 'unknown'),
      ),
    );
  });
  delay.disable();
  await Promise.all(calls);

  const isWithin = (time: number): boolean => time >= from && time < until;
  const counted = outcomes.filter(({ arrival }) => isWithin(arrival));
  const answered = latenciesOf(counted.filter(({ code }) => code === undefined));
  const refused = latenciesOf(counted.filter(({ code }) => code !== undefined && code !== LATE));
  const inTime = outcomes.filter(
    ({ arrival, end, code }) => code === undefined && isWithin(end) && end - arrival <= patience,
  );
  return {
    offered: counted.length / seconds,
    good: inTime.length / seconds,
    share: answered.filter((latency) => latency <= patience).length / answered.length,
    p50: quantile(answered, 0.5),
    p99: quantile(answered, 0.99),
    failed: countsOf(counted, seconds),
    refusal: quantile(refused, 0.99),
    delay: delay.percentile(99) / 1e6,
  };
}

function latenciesOf(outcomes: readonly Outcome[]): Float64Array {
  return Float64Array.from(outcomes, ({ arrival, end }) => end - arrival).toSorted();
}

function countsOf(outcomes: readonly Outcome[], seconds: number): Map<string, number> {
  const counts = new Map<string, number>();
  for (const { code } of outcomes) {
    if (code !== undefined) {
      counts.set(code, (counts.get(code) ?? 0) + 1 / seconds);
    }
  }
  return counts;
}

import { quantile } from '../harness/statistics.js';

export interface LoadReport {
  /** Requests answered. */
  readonly requests: number;
  /** Requests answered a second. */
  readonly rate: number;
  /** Of the latency of all requests, in milliseconds. */
  readonly p50: number;
  readonly p99: number;
}

export function reportLoad(
  answered: readonly number[],
  duration: number,
  givenUp: readonly number[] = [],
): LoadReport {
  const latencies = Float64Array.from([...answered, ...givenUp]).toSorted();
  return {
    requests: answered.length,
    rate: (answered.length / duration) * 1000,
    p50: quantile(latencies, 0.5),
    p99: quantile(latencies, 0.99),
  };
}

import { setImmediate } from 'node:timers/promises';
import { summarize } from './statistics.js';

/** The median of calls made one after another, in milliseconds. */
export async function typicalLatency(
  seconds: number,
  call: () => Promise<unknown>,
): Promise<number> {
  const latencies: number[] = [];
  const end = performance.now() + seconds * 1000;
  while (performance.now() < end) {
    await setImmediate();
    const start = performance.now();
    await call();
    latencies.push(performance.now() - start);
  }
  return summarize(latencies).median;
}

import { setImmediate, setTimeout } from 'node:timers/promises';
import { summarize } from './statistics.js';

/** The median of calls made one after another, `pause` milliseconds apart, in milliseconds. */
export async function typicalLatency(
  seconds: number,
  call: () => Promise<unknown>,
  pause = 0,
): Promise<number> {
  const latencies: number[] = [];
  const end = performance.now() + seconds * 1000;
  while (performance.now() < end) {
    await (pause > 0 ? setTimeout(pause) : setImmediate());
    const start = performance.now();
    await call();
    latencies.push(performance.now() - start);
  }
  return summarize(latencies).median;
}

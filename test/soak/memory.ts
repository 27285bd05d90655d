import { setImmediate } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

export interface MemorySample {
  /**
   * Bytes that are in use after garbage collection, buffers included; and those that the process
   * has.
   */
  readonly heap: number;
  readonly rss: number;
}

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;

export async function sampleMemory(): Promise<MemorySample> {
  for (let round = 0; round < 2; round++) {
    collectGarbage();
    await setImmediate();
  }
  const { heapUsed, external, rss } = process.memoryUsage();
  return { heap: heapUsed + external, rss };
}

/**
 * By how much the values grow from the first to the last, by the straight line that fits them best.
 */
export function growthOf(values: readonly number[]): number {
  const middle = (values.length - 1) / 2;
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const covariance = values.reduce(
    (sum, value, index) => sum + (index - middle) * (value - mean),
    0,
  );
  const variance = values.reduce((sum, _, index) => sum + (index - middle) ** 2, 0);
  return variance === 0 ? 0 : (covariance / variance) * (values.length - 1);
}

import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;

/**
 * Megabytes in use once all garbage is gone: on the heap, in buffers, and of the process as a
 * whole.
 */
export interface Memory {
  readonly heap: number;
  readonly buffers: number;
  readonly rss: number;
}

export async function memoryInUse(): Promise<Memory> {
  // What is closed or finalised lets go of the rest.
  for (let i = 0; i < 2; i++) {
    collectGarbage();
    await new Promise((resolve) => setImmediate(resolve));
  }
  const { heapUsed, arrayBuffers, rss } = process.memoryUsage();
  return { heap: heapUsed / 2 ** 20, buffers: arrayBuffers / 2 ** 20, rss: rss / 2 ** 20 };
}

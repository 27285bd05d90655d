import { threadTime } from '../benchmark/harness/thread-time.js';

/**
 * The result of the work, and the longest stretch in milliseconds in which the event loop stood still:
 * the time that this thread ran between two turns. The time of other programs does not count.
 */
export async function standstillOf<T>(
  work: () => Promise<T>,
): Promise<{ readonly result: T; readonly ms: number }> {
  let last = threadTime();
  let longest = 0;
  const tick = (): void => {
    const now = threadTime();
    longest = Math.max(longest, now - last);
    last = now;
  };
  const timer = setInterval(tick, 1);
  try {
    const result = await work();
    tick();
    return { result, ms: longest / 1000 };
  } finally {
    clearInterval(timer);
  }
}

import { threadTime } from './thread-time.js';

/**
 * Watches for the longest stretch in milliseconds in which the event loop stood still: the time that
 * this thread ran between two turns. The time of other programs does not count. Call the result for
 * the longest stretch so far; it ends the watch.
 */
export function watchStandstill(): () => number {
  let last = threadTime();
  let longest = 0;
  const tick = (): void => {
    const now = threadTime();
    longest = Math.max(longest, now - last);
    last = now;
  };
  const timer = setInterval(tick, 1);
  return () => {
    tick();
    clearInterval(timer);
    return longest / 1000;
  };
}

/** The result of the work, and the longest stretch in which it held the event loop, in milliseconds. */
export async function standstillOf<T>(
  work: () => Promise<T>,
): Promise<{ readonly result: T; readonly ms: number }> {
  const end = watchStandstill();
  try {
    return { result: await work(), ms: end() };
  } finally {
    end();
  }
}

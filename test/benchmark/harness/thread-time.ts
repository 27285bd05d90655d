import { readFileSync } from 'node:fs';

/**
 * Microseconds for which this thread has had a core; where the system does not tell, those for
 * which its event loop was busy, with or without one.
 */
export function threadTime(): number {
  try {
    return Number.parseInt(readFileSync('/proc/thread-self/schedstat', 'latin1')) / 1000;
  } catch {
    return performance.eventLoopUtilization().active * 1000;
  }
}

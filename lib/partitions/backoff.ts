/** The longest time between two restarts, in milliseconds. */
export const LONGEST_BACKOFF = 30_000;

/**
 * Milliseconds before the restart that follows so many failures in a row: anything up to `first`, doubled with each failure, so that
 * what has failed together does not come back together. After "full jitter" in https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
 */
export function backoff(first: number, failures: number, random: () => number): number {
  return random() * Math.min(LONGEST_BACKOFF, first * 2 ** (failures - 1));
}

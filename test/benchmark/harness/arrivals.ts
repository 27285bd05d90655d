import { setTimeout } from 'node:timers/promises';

export interface Arrivals {
  /** Mean arrivals a second. */
  readonly rate: number;
  readonly seconds: number;
}

/**
 * Tells of arrivals by a Poisson process, each with its time, whatever becomes of those before: as
 * they are due, or as soon after that as the event loop lets it.
 */
export async function arrive(
  { rate, seconds }: Arrivals,
  arrived: (at: number) => void,
): Promise<void> {
  const start = performance.now();
  const end = start + seconds * 1000;
  for (let arrival = start; arrival < end;) {
    await setTimeout(Math.max(0, arrival - performance.now()));
    // As many as are due by now, and no others that become due meanwhile: what they ask for needs
    // the event loop.
    for (
      const due = Math.min(end, performance.now());
      arrival < due;
      arrival += exponential(1000 / rate)
    ) {
      arrived(arrival);
    }
  }
}

function exponential(mean: number): number {
  return -Math.log(1 - Math.random()) * mean;
}

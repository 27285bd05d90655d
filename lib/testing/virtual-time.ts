import type { Clock } from '@sinonjs/fake-timers';
import { setImmediate as endOfTurn } from 'node:timers/promises';
import { messageOf, ServingError } from '../errors.js';

/**
 * Time that passes only when the test says so: timers, `Date` and `performance`, by
 * `@sinonjs/fake-timers`, which must be installed.
 *
 * Turns of the event loop stay real, since batches start at the end of one. The fake timers of a
 * test runner work, too, if they leave `setImmediate`, `nextTick` and `queueMicrotask` real.
 */
export class VirtualTime {
  private constructor(private readonly clock: Clock) {}

  /**
   * Stops the time of this process. Call it before servings are created.
   *
   * @throws ServingError when `@sinonjs/fake-timers` is not installed
   */
  static async install(): Promise<VirtualTime> {
    const { install } = await fakeTimers();
    return new VirtualTime(install({ now: Date.now(), toFake: [...FAKED] }));
  }

  /** The number of pending timers. */
  get timers(): number {
    return this.clock.countTimers();
  }

  /** Advances the time by milliseconds, and waits until all effects have happened. */
  async advance(milliseconds: number): Promise<void> {
    await settle();
    await this.clock.tickAsync(milliseconds);
    await settle();
  }

  /** Advances to the next timer, and fires all timers that are due then. */
  async advanceToNext(): Promise<void> {
    await settle();
    this.ringNext();
    await settle();
  }

  /** Fires timers until none is pending. */
  async runAll(): Promise<void> {
    for (await settle(); this.timers > 0; await settle()) {
      this.ringNext();
    }
  }

  /** Restores the real time. Pending timers never fire. */
  restore(): void {
    this.clock.uninstall();
  }

  /** Restores the real time at the end of a `using` block. */
  [Symbol.dispose](): void {
    this.restore();
  }

  private ringNext(): void {
    this.clock.next();
    // Timers due at the same time fire together.
    this.clock.tick(0);
  }
}

const FAKED = [
  'setTimeout',
  'clearTimeout',
  'setInterval',
  'clearInterval',
  'Date',
  'performance',
] as const;

async function fakeTimers(): Promise<typeof import('@sinonjs/fake-timers')> {
  try {
    return await import('@sinonjs/fake-timers');
  } catch (cause) {
    throw new ServingError(
      `Virtual time needs the package @sinonjs/fake-timers; install it (${messageOf(cause)})`,
      { cause },
    );
  }
}

/**
 * Waits until everything has happened that needs no time to pass: calls queue, due batches start,
 * and replies arrive.
 *
 * It waits a few turns of the event loop: one until a batch starts, one until its callers have
 * their replies, and one until the next batch starts. For anything that crosses a network, await
 * the reply itself.
 */
export async function settle(turns = 3): Promise<void> {
  for (let turn = 0; turn < turns; turn++) {
    await endOfTurn();
  }
}

import type { Clock } from '@sinonjs/fake-timers';
import { messageOf, ServingError } from '../errors.js';
import { settle } from './settle.js';

/**
 * Time that passes only when the test says so: timers, `Date` and `performance`, by
 * `@sinonjs/fake-timers`, which is to be installed beside this package.
 *
 * Turns of the event loop stay real, since batches start at the end of one. The fake timers of a
 * test runner do as well if they leave `setImmediate`, `nextTick` and `queueMicrotask` real.
 */
export class VirtualTime {
  private constructor(private readonly clock: Clock) {}

  /**
   * Stops the time of this process; to be called before servings are made.
   *
   * @throws ServingError when `@sinonjs/fake-timers` is not there
   */
  static async install(): Promise<VirtualTime> {
    const { install } = await fakeTimers();
    return new VirtualTime(install({ now: Date.now(), toFake: [...FAKED] }));
  }

  /** The number of timers that wait. */
  get timers(): number {
    return this.clock.countTimers();
  }

  /** Lets so many milliseconds pass, and all happen that they bring about. */
  async advance(milliseconds: number): Promise<void> {
    await settle();
    await this.clock.tickAsync(milliseconds);
    await settle();
  }

  /** Goes to the time when the next timer is due, and lets all that are due then ring. */
  async advanceToNext(): Promise<void> {
    await settle();
    this.ringNext();
    await settle();
  }

  /** Goes from timer to timer until none waits. */
  async runAll(): Promise<void> {
    for (await settle(); this.timers > 0; await settle()) {
      this.ringNext();
    }
  }

  /** Gives the process its own time back. Timers that still wait never ring. */
  restore(): void {
    this.clock.uninstall();
  }

  [Symbol.dispose](): void {
    this.restore();
  }

  private ringNext(): void {
    this.clock.next();
    // Those due at the same time, which nothing should tell from the first.
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

import type { Clock } from '@sinonjs/fake-timers';
import { setImmediate as endOfTurn } from 'node:timers/promises';
import { ServingError } from '../../index.js';
import { formatValue, messageOf } from '../../doors/text.js';

/**
 * Timers, `Date` and `performance` that only the test advances. Needs `@sinonjs/fake-timers`.
 *
 * Turns of the event loop stay real, since batches start at a turn's end. A test runner's fake
 * timers also work if they leave `setImmediate`, `nextTick` and `queueMicrotask` real.
 */
export class VirtualTime {
  private constructor(private readonly clock: Clock) {}

  /**
   * Call this before creating servings.
   *
   * @throws ServingError without `@sinonjs/fake-timers`
   */
  static async install(): Promise<VirtualTime> {
    const { install } = await fakeTimers();
    return new VirtualTime(install({ now: Date.now(), toFake: [...FAKED] }));
  }

  /** Pending timers. */
  get timers(): number {
    return this.clock.countTimers();
  }

  /**
   * Advances by milliseconds, then waits for all effects.
   *
   * @throws ServingError for a value that is no number from 0 on
   */
  async advance(milliseconds: number): Promise<void> {
    if (!(Number.isFinite(milliseconds) && milliseconds >= 0)) {
      throw new ServingError(
        `Virtual time cannot advance by ${formatValue(milliseconds)}; give milliseconds, from 0 on`,
      );
    }
    await settle();
    await this.clock.tickAsync(milliseconds);
    await settle();
  }

  /** Advances to the next timer and fires all due then. */
  async advanceToNext(): Promise<void> {
    await settle();
    this.ringNext();
    await settle();
  }

  /**
   * Fires timers until no timer is pending.
   *
   * @throws ServingError after 10,000, since an interval has no last one
   */
  async runAll(): Promise<void> {
    await settle();
    for (let fired = 0; this.timers > 0; fired++) {
      if (fired === MOST_FIRED) {
        throw new ServingError(
          `Timers are pending after ${MOST_FIRED} have fired; clear intervals first, or use advance`,
        );
      }
      this.ringNext();
      await settle();
    }
  }

  /** Restores real time. Pending timers never fire. */
  restore(): void {
    this.clock.uninstall();
  }

  /** Restores real time at the end of a `using` block. */
  [Symbol.dispose](): void {
    this.restore();
  }

  private ringNext(): void {
    this.clock.next();
    // Fires all timers due at this time.
    this.clock.tick(0);
  }
}

const MOST_FIRED = 10_000;

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
 * Waits for everything that needs no time to pass: calls queue, due batches start, replies arrive.
 *
 * Starting a batch, replying and starting the next one take a turn of the event loop each. Across a
 * network, await the reply instead.
 */
export async function settle(turns = 3): Promise<void> {
  for (let turn = 0; turn < turns; turn++) {
    await endOfTurn();
  }
}

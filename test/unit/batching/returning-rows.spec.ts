import { afterEach, describe, expect, it, jest } from '@jest/globals';
import { ReturningRows } from '../../../lib/core/batching/pool.js';
import { HeldBatcher, type HeldBatcherOptions } from '../../fixtures/batching/held-batcher.js';
import { PoissonLoad } from '../../fixtures/batching/poisson-load.js';
import { later, useVirtualTime } from '../../fixtures/async/virtual-time.js';

interface Loop extends HeldBatcherOptions {
  readonly callers: number;
  /** Milliseconds of a batch. */
  readonly timeOf?: (rows: number) => number;
  /** Milliseconds from an answer to its caller's next call. */
  readonly back?: number | ((call: number) => number);
  readonly lanes?: number;
  /** Milliseconds in which a call is to be answered. */
  readonly timeout?: number;
}

afterEach(() => {
  jest.restoreAllMocks();
});

const mostlyFixed = (rows: number): number => 10 + rows / 10;

/** Callers that call again soon after their answer, in ever new names: `0.1` is the second call. */
class ClosedLoop {
  readonly batches: string[] = [];
  readonly batcher: HeldBatcher;
  callers: number;
  private readonly timeout: number;

  constructor({
    callers,
    timeOf = mostlyFixed,
    back = 1,
    lanes = 1,
    timeout = Infinity,
    ...options
  }: Loop) {
    this.callers = callers;
    this.timeout = timeout;
    this.batcher = new HeldBatcher({
      batchSize: 8,
      ...options,
      onDispatch: (rows) => {
        const names = rows.split(' ');
        this.batches.push(rows);
        setTimeout(() => {
          this.batcher.finishBatch();
          names.forEach((name, place) => {
            const [caller = 0, call = 0] = name.split('.').map(Number);
            const pause = typeof back === 'number' ? back + place / 10 : back(caller + 7 * call);
            setTimeout(() => this.call(caller, call + 1, caller % lanes), pause);
          });
        }, timeOf(names.length));
      },
    });
    for (let caller = 0; caller < callers; caller++) {
      // They begin at different times.
      setTimeout(() => this.call(caller, 0, caller % lanes), 3 * caller);
    }
  }

  call(caller: number, call: number, lane: number): void {
    if (caller < this.callers) {
      const deadline = performance.now() + this.timeout;
      this.batcher.ask(`${caller}.${call}.`, { deadline }, lane);
    }
  }

  /** The mean rows of the batches that start meanwhile. */
  async during(ms: number): Promise<number> {
    const before = this.batches.length;
    await later(ms);
    const sizes = this.batches.slice(before).map((rows) => rows.split(' ').length);
    return sizes.reduce((sum, size) => sum + size, 0) / sizes.length;
  }

  async end(): Promise<void> {
    this.callers = 0;
    await later(100);
  }
}

/** Whether the partition waits, after each batch after which it may. */
function watchedWaits(): boolean[] {
  const waits: boolean[] = [];
  const { prototype } = ReturningRows;
  const original = Reflect.get(prototype, 'waitAfter');
  jest.spyOn(prototype, 'waitAfter').mockImplementation(function (this: ReturningRows, batch) {
    original.call(this, batch);
    waits.push(this.areAwaited);
  });
  return waits;
}

describe('A lone partition', () => {
  useVirtualTime();

  it.each([
    [2, Infinity],
    [5, Infinity],
    [8, Infinity],
    [8, 1000],
  ])(
    '[4.13] waits for the rows that it has just answered, so that %d callers with %d ms share each batch',
    async (callers, timeout) => {
      const loop = new ClosedLoop({ callers, timeout });
      const untaught = await loop.during(100);
      await later(10_000);

      expect(untaught).toBeLessThan(callers);
      expect(await loop.during(1000)).toBe(callers);
      await loop.end();
    },
  );

  it.each<[string, Loop]>([
    ['a batch of all rows would be larger than a batch', { callers: 16 }],
    ['one batch takes as long as two', { callers: 4, timeOf: (rows) => 5 * rows }],
    ['the rows come back at any time', { callers: 4, back: (call) => (call * 7919) % 30 }],
    ['calls have little time', { callers: 4, timeout: 60 }],
    ['a window gives them time anyway', { callers: 4, batchTimeout: 2 }],
    ['rows of another lane wait', { callers: 4, lanes: 2 }],
    ['another partition would run them', { callers: 4, partitions: 2 }],
  ])('[4.13] does not wait if %s', async (_, options) => {
    const waits = watchedWaits();
    const loop = new ClosedLoop(options);
    await later(10_000);
    await loop.end();
    expect(loop.batches.length).toBeGreaterThan(500);
    expect(waits.filter(Boolean).length).toBeLessThanOrEqual(waits.length / 100);
  });

  it('[4.13] does not wait longer than such rows have taken, and then pauses', async () => {
    const loop = new ClosedLoop({ callers: 8 });
    await later(10_000);
    loop.callers = 4;
    const before = loop.batcher.records.length;
    const waits = watchedWaits();
    await later(100);

    const [last, next] = loop.batcher.records.slice(before);
    expect([last!.rows, next!.rows]).toEqual([8, 4]);
    // Rows came back after 1.0 to 1.7 ms.
    expect(next!.wait).toBeLessThan(2);
    expect(waits.slice(0, 2)).toEqual([true, false]);
    await loop.end();
  });

  it('[4.13] does not wait once it is drained', async () => {
    const loop = new ClosedLoop({ callers: 4 });
    await later(10_000);
    const waits = watchedWaits();
    await later(100);
    expect(waits).toContain(true);
    loop.batcher.drain();
    waits.length = 0;
    await later(1000);

    expect(waits).toEqual([]);
    await loop.end();
  });
});

describe('Calls that do not depend on answers', () => {
  it.each([0.1, 0.5, 0.8, 1, 1.5])(
    '[4.13] are never waited for, at %d times the capacity',
    async (load) => {
      const waits = watchedWaits();
      const timeOf = mostlyFixed;
      const { records } = await new PoissonLoad({
        limits: { batchSize: 32, batchTimeout: 0 },
        timeOf,
        rate: (load * 32) / timeOf(32),
        within: 50,
        from: 0,
        until: 20_000,
      }).play();
      expect(records.length).toBeGreaterThan(500);
      expect(waits.filter(Boolean)).toEqual([]);
    },
  );
});

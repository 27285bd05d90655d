import { describe, expect, it } from '@jest/globals';
import { asyncScheduler, type Observable, map } from 'rxjs';
import { TestScheduler } from 'rxjs/testing';
import { type ClosedWindow, windowsBy } from '../../../lib/batching/windows-by.js';

/**
 * Items are letters and digits; capitals, small letters and digits have a lane each. Windows of 3
 * items or 5 ms.
 */
const laneOf = (item: string): string =>
  /\d/.test(item) ? 'digits' : item === item.toUpperCase() ? 'capitals' : 'letters';
const options = { lane: laneOf, size: () => 3, timeout: () => 5 };

describe('windowsBy', () => {
  it.each([
    {
      promise: '[4.1] closes a window with its last item',
      items: '  -a-b-c----|',
      windows: '-----w----|',
      values: { w: '3 letters' },
    },
    {
      promise:
        '[4.1] closes a window its timeout after its first item, which later items do not put off',
      items: '  --a-b-c--d------|',
      options: { ...options, size: () => 9 },
      windows: '-------w------x-|',
      values: { w: '3 letters', x: '1 letters' },
    },
    {
      promise: '[4.1] starts the clock anew with each window, however long nothing came',
      items: '  -a-----------b---c------|',
      windows: '------w-----------x-----|',
      values: { w: '1 letters', x: '2 letters' },
    },
    {
      promise: '[4.1] opens a new window in the frame in which one fills up',
      items: '  -(abcdef)-g-----|',
      windows: '-(wx)----------y|',
      values: { w: '3 letters', x: '3 letters', y: '1 letters' },
    },
    {
      promise: '[4.1] closes a window that fills up in the frame of its timeout once',
      items: '  -a-b--c---|',
      windows: '------w---|',
      values: { w: '3 letters' },
    },
    {
      promise: '[4.1] closes what is open when the source completes',
      items: '  -a-B-|',
      windows: '-----(wx|)',
      values: { w: '1 letters', x: '1 capitals' },
    },
    {
      promise: '[4.1] closes a window at its first item where the timeout is 0',
      items: '  -(ab)--C-|',
      options: { ...options, timeout: () => 0 },
      windows: '-(wx)--y-|',
      values: { w: '1 letters', x: '1 letters', y: '1 capitals' },
    },
    {
      promise: '[4.1] closes every window at its first item where the size is 1',
      items: '  -(ab)--C-|',
      options: { ...options, size: () => 1 },
      windows: '-(wx)--y-|',
      values: { w: '1 letters', x: '1 letters', y: '1 capitals' },
    },
    {
      promise: '[4.7] has a window and a clock for each lane',
      items: '  -aB1bcC--2---|',
      windows: '-----w-xy----(z|)',
      values: { w: '3 letters', x: '2 capitals', y: '1 digits', z: '1 digits' },
    },
    {
      promise: 'passes an error of the source on, and no window after it',
      items: '  -a-#',
      windows: '---#',
      values: {},
    },
  ])('$promise', ({ items, windows, values, options: own = options }) => {
    marbles(({ hot, expectObservable }) => {
      expectObservable(hot(items).pipe(windowsBy(own), described)).toBe(windows, values);
    });
  });

  it('[4.1] holds neither a clock nor a group between windows', () => {
    const opened = new Set<number>();
    const own = { ...options, timeout: () => (opened.add(asyncScheduler.now()), 5) };

    const scheduler = marbles(({ hot, expectObservable }) => {
      const items = '  -a-b-c---(def)--g------';
      const windows = '-----w---x-----------y-';
      expectObservable(hot(items).pipe(windowsBy(own), described)).toBe(windows, {
        w: '3 letters',
        x: '3 letters',
        y: '1 letters',
      });
    });

    // A group that had stayed would have taken the next item of its lane without opening a window
    // of its own.
    expect([...opened]).toEqual([1, 9, 16]);
    expect(scheduler.actions).toEqual([]);
  });

  it('[9.3] closes the open window of a lane when its `closed$` emits, and opens the next as always', () => {
    marbles(({ hot, expectObservable }) => {
      const items = '  -aB--------c------|';
      const flush$ = hot('---f----f---------');
      const closed$ = (): Observable<unknown> => flush$;
      const windows = '---(wx)---------y-|';
      expectObservable(hot(items).pipe(windowsBy({ ...options, closed$ }), described)).toBe(
        windows,
        {
          w: '1 letters',
          x: '1 capitals',
          y: '1 letters',
        },
      );
    });
  });

  it('[4.8] reads size and timeout when a window opens', () => {
    const limits = { size: 2, timeout: 9 };
    const own = { ...options, size: () => limits.size, timeout: () => limits.timeout };

    marbles(({ hot, expectObservable }) => {
      const items = '  -a-b-cd-e-f-----';
      const changes$ = hot('--s----t--------', {
        s: { size: 3, timeout: 9 },
        t: { size: 9, timeout: 2 },
      });
      const windows = '---w----x---y---';
      changes$.subscribe((change) => Object.assign(limits, change));
      expectObservable(hot(items).pipe(windowsBy(own), described)).toBe(windows, {
        w: '2 letters',
        x: '3 letters',
        y: '1 letters',
      });
    });
  });
});

/** The number of items and the lane of each window: `3 letters`. */
const described = map(({ lane, items }: ClosedWindow<string>) => `${items} ${lane}`);

/** Runs the diagrams and gives back their scheduler. */
function marbles(run: Parameters<TestScheduler['run']>[0]): TestScheduler {
  const scheduler = new TestScheduler((actual, expected) => expect(actual).toEqual(expected));
  scheduler.run(run);
  return scheduler;
}

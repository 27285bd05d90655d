import { describe, expect, it } from '@jest/globals';
import { asyncScheduler, type Observable, map } from 'rxjs';
import { TestScheduler } from 'rxjs/testing';
import { type ClosedWindow, windowsBy } from '../../../lib/core/batching/windows.js';

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
      promise: '[4.1] A window closes with the item that fills it',
      items: '  -a-b-c----|',
      windows: '-----w----|',
      values: { w: '3 letters' },
    },
    {
      promise:
        '[4.1] A window closes its timeout after its first item, and later items do not delay it',
      items: '  --a-b-c--d------|',
      options: { ...options, size: () => 9 },
      windows: '-------w------x-|',
      values: { w: '3 letters', x: '1 letters' },
    },
    {
      promise: '[4.1] The clock starts anew with each window, after any pause',
      items: '  -a-----------b---c------|',
      windows: '------w-----------x-----|',
      values: { w: '1 letters', x: '2 letters' },
    },
    {
      promise: '[4.1] A new window opens in the same frame in which one fills up',
      items: '  -(abcdef)-g-----|',
      windows: '-(wx)----------y|',
      values: { w: '3 letters', x: '3 letters', y: '1 letters' },
    },
    {
      promise: '[4.1] A window that fills up in the frame of its timeout closes once',
      items: '  -a-b--c---|',
      windows: '------w---|',
      values: { w: '3 letters' },
    },
    {
      promise: '[4.1] Open windows close when the source completes',
      items: '  -a-B-|',
      windows: '-----(wx|)',
      values: { w: '1 letters', x: '1 capitals' },
    },
    {
      promise: '[4.1] A window closes at its first item when the size is 1',
      items: '  -(ab)--C-|',
      options: { ...options, size: () => 1 },
      windows: '-(wx)--y-|',
      values: { w: '1 letters', x: '1 letters', y: '1 capitals' },
    },
    {
      promise: '[4.7] Each lane has a window and a clock of its own',
      items: '  -aB1bcC--2---|',
      windows: '-----w-xy----(z|)',
      values: { w: '3 letters', x: '2 capitals', y: '1 digits', z: '1 digits' },
    },
    {
      promise: 'An error of the source is passed on, and no window follows it',
      items: '  -a-#',
      windows: '---#',
      values: {},
    },
  ])('$promise', ({ items, windows, values, options: own = options }) => {
    marbles(({ hot, expectObservable }) => {
      expectObservable(hot(items).pipe(windowsBy(own), described)).toBe(windows, values);
    });
  });

  it('[4.1] windowsBy holds neither a clock nor a group between windows', () => {
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

    // A group that stayed would have taken the next item of its lane without opening a window.
    expect([...opened]).toEqual([1, 9, 16]);
    expect(scheduler.actions).toEqual([]);
  });

  it('[9.3] An open window closes when its `closed$` emits, and the next item opens another', () => {
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

  it('[4.8] Size and timeout are read when a window opens', () => {
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

/** Runs the diagrams and returns their scheduler. */
function marbles(run: Parameters<TestScheduler['run']>[0]): TestScheduler {
  const scheduler = new TestScheduler((actual, expected) => expect(actual).toEqual(expected));
  scheduler.run(run);
  return scheduler;
}

import { describe, expect, it } from '@jest/globals';
import { WaitingLine, type Window } from '../../../lib/batching/waiting-line.js';

const windowOf = (lane: string, rows: string[], size = 3): Window<string> => ({ lane, rows, size, reason: 'timeout' });

function lineOf(...windows: Window<string>[]): WaitingLine<string> {
  const line = new WaitingLine<string>();
  windows.forEach((window) => line.join(window));
  return line;
}

function takeAll(line: WaitingLine<string>): string[] {
  const taken: string[] = [];
  for (let window = line.take(); window; window = line.take()) {
    taken.push(window.rows.join(' '));
  }
  return taken;
}

describe('WaitingLine', () => {
  it('[4.4] gives windows in the order in which they joined', () => {
    const line = lineOf(windowOf('a', ['a1', 'a2', 'a3']), windowOf('b', ['b1']), windowOf('a', ['a4']));

    expect(line.head?.rows).toEqual(['a1', 'a2', 'a3']);
    expect(takeAll(line)).toEqual(['a1 a2 a3', 'b1', 'a4']);
    expect(line.isEmpty).toBe(true);
    expect(line.head).toBeUndefined();
  });

  it('[4.2] lets a window grow in its place until it is full', () => {
    const line = lineOf(windowOf('a', ['a1']), windowOf('b', ['b1']));

    expect(['a2', 'a3', 'a4'].map((row) => line.grow('a', row))).toEqual([true, true, false]);

    expect(line.head?.reason).toBe('full');
    expect(takeAll(line)).toEqual(['a1 a2 a3', 'b1']);
  });

  it('[4.2] does not let a window grow that was taken', () => {
    const line = lineOf(windowOf('a', ['a1']));
    line.take();

    expect(line.grow('a', 'a2')).toBe(false);
  });

  it('[4.2] grows the later window of a lane when the earlier is taken', () => {
    const line = lineOf(windowOf('a', ['a1', 'a2', 'a3']), windowOf('a', ['a4']));
    line.take();

    expect(line.grow('a', 'a5')).toBe(true);
    expect(takeAll(line)).toEqual(['a4 a5']);
  });

  it('[4.2] has no window to grow for a lane that has none in line', () => {
    expect(lineOf(windowOf('a', ['a1'])).grow('b', 'b1')).toBe(false);
  });

  it('[4.7] lets any number of lanes grow', () => {
    const lanes = Array.from({ length: 5000 }, (_, i) => `lane ${i}`);
    const line = lineOf(...lanes.map((lane) => windowOf(lane, ['1'])));

    expect(lanes.filter((lane) => !line.grow(lane, '2'))).toEqual([]);
    expect(new Set(takeAll(line))).toEqual(new Set(['1 2']));
  });

  it('[9.3] gives all rows back when it is cleared, and is then as new', () => {
    const large = windowOf(
      'c',
      Array.from({ length: 300_000 }, () => 'c'),
      300_000,
    );
    const line = lineOf(windowOf('a', ['a1']), windowOf('b', ['b1', 'b2', 'b3']), large);

    expect(line.clear()).toHaveLength(300_004);
    expect(line.isEmpty).toBe(true);
    expect(line.grow('a', 'a2')).toBe(false);

    line.join(windowOf('a', ['a3']));
    expect(takeAll(line)).toEqual(['a3']);
  });

  it('[4.4] keeps the order however often windows join and leave', () => {
    const line = new WaitingLine<string>();
    const taken: string[] = [];
    for (let i = 0; i < 1000; i++) {
      line.join(windowOf('a', [`${i}`], 1));
      if (i % 3 > 0) {
        taken.push(line.take()!.rows[0]!);
      }
    }

    expect([...taken, ...takeAll(line)]).toEqual(Array.from({ length: 1000 }, (_, i) => `${i}`));
  });

  it('[4.4] looks at a window as often however many wait', () => {
    expect(looksPerWindow(1000)).toBe(looksPerWindow(10));
  });
});

/** How often a line reads what a window holds while it joins, grows and leaves. */
function looksPerWindow(windows: number): number {
  let looks = 0;
  const line = new WaitingLine<string>();
  const lanes = Array.from({ length: windows }, (_, i) => `lane ${i}`);
  for (const lane of lanes) {
    line.join({
      size: 3,
      reason: 'timeout',
      get lane() {
        return (looks++, lane);
      },
      get rows() {
        return (looks++, [lane]);
      },
    });
  }
  lanes.forEach((lane) => line.grow(lane, lane));
  takeAll(line);
  return looks / windows;
}

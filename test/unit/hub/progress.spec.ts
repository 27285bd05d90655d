import { afterEach, beforeEach, expect, it, jest } from '@jest/globals';
import { formatBytes } from '../../../lib/doors/text.js';
import { Progress } from '../../../lib/extensions/hub/download.js';

beforeEach(() => {
  jest.useFakeTimers();
});
afterEach(() => {
  jest.useRealTimers();
});

/** The lines of a download of these bytes each, `pause` milliseconds apart. */
function linesOf(size: number | undefined, pieces: readonly number[], pause: number): string[] {
  const lines: string[] = [];
  const progress = new Progress('model.onnx', size, (line) => lines.push(line));
  for (const bytes of pieces) {
    jest.advanceTimersByTime(pause);
    progress.add(bytes);
  }
  return lines;
}

const hundred = Array.from({ length: 100 }, () => 1_000_000);

it('[1.10] A download logs a line per 10 %', () => {
  const lines = linesOf(100_000_000, hundred, 500);

  expect(lines).toHaveLength(10);
  expect(lines[0]).toBe('downloads model.onnx: 10 % of 100 MB after 5 s');
});

it('[1.10] A slow download logs a line every 10 s', () => {
  expect(linesOf(100_000_000, hundred.slice(0, 5), 5000)).toEqual([
    'downloads model.onnx: 2 % of 100 MB after 10 s',
    'downloads model.onnx: 4 % of 100 MB after 20 s',
  ]);
});

it('[1.10] A fast download logs at most a line a second', () => {
  expect(linesOf(100_000_000, hundred, 25)).toEqual([
    'downloads model.onnx: 40 % of 100 MB after 1 s',
    'downloads model.onnx: 80 % of 100 MB after 2 s',
  ]);
});

it('[1.10] A download of unknown size logs its bytes', () => {
  expect(linesOf(undefined, hundred.slice(0, 4), 6000)).toEqual([
    'downloads model.onnx: 2 MB after 12 s',
    'downloads model.onnx: 4 MB after 24 s',
  ]);
});

it.each([
  [0, '0 bytes'],
  [999, '999 bytes'],
  [407_456, '407 kB'],
  [1_000_000, '1 MB'],
  [2_345_678_901, '2.35 GB'],
  [1e13, '10000 GB'],
])('%d bytes are written as %s', (bytes, words) => {
  expect(formatBytes(bytes)).toBe(words);
});

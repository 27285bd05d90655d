import { describe, expect, it } from '@jest/globals';
import { array, assert, nat, property } from 'fast-check';
import {
  chunkSamples,
  contextSamples,
  noSamples,
  windowsOf,
} from '../../../sample/03-audio-streams/src/windows.js';

describe('windowsOf', () => {
  it('There is no window before a chunk is full', () => {
    const { windows, rest } = windowsOf(noSamples, counting(chunkSamples - 1));

    expect(windows).toEqual([]);
    expect(rest).toEqual(Float32Array.of(...noSamples, ...counting(chunkSamples - 1)));
  });

  it('The first chunk follows silence, and each further chunk follows the end of the one before', () => {
    const { windows, rest } = windowsOf(noSamples, counting(2 * chunkSamples));

    expect(windows).toEqual([
      Float32Array.of(...noSamples, ...counting(chunkSamples)),
      counting(2 * chunkSamples).slice(chunkSamples - contextSamples),
    ]);
    expect(rest).toEqual(counting(2 * chunkSamples).slice(-contextSamples));
  });

  it('The windows do not depend on how a stream is cut into pieces', () => {
    const pieces = array(nat({ max: 2 * chunkSamples }), { maxLength: 20 });

    assert(
      property(pieces, (lengths) => {
        const samples = counting(lengths.reduce((sum, length) => sum + length, 0));
        const whole = windowsOf(noSamples, samples);

        let rest: Float32Array = noSamples;
        let start = 0;
        const windows = lengths.flatMap((length) => {
          const cut = windowsOf(rest, samples.slice(start, start + length));
          start += length;
          rest = cut.rest;
          return cut.windows;
        });

        expect({ windows, rest }).toEqual(whole);
        expect(windows).toHaveLength(Math.floor(samples.length / chunkSamples));
      }),
      { numRuns: 50 },
    );
  });

  it('Windows leave the pieces unchanged and share no memory', () => {
    const piece = counting(2 * chunkSamples);
    const { windows, rest } = windowsOf(noSamples, piece);
    windows.forEach((window) => window.fill(0));
    rest.fill(0);

    expect(piece).toEqual(counting(2 * chunkSamples));
    expect(noSamples).toEqual(new Float32Array(contextSamples));
    expect(new Set([...windows, rest, noSamples, piece].map(({ buffer }) => buffer)).size).toBe(5);
  });
});

/** 1, 2, 3 and so on. */
function counting(length: number): Float32Array {
  return Float32Array.from({ length }, (_, index) => index + 1);
}

import { describe, expect, it } from '@jest/globals';
import { samplesOf } from '../../../sample/03-audio-streams/src/pcm.js';

describe('samplesOf', () => {
  it('16-bit samples in little-endian order are read as -1 to 1', () => {
    const pcm = Buffer.of(0x00, 0x00, 0x01, 0x00, 0xff, 0x7f, 0x00, 0x80, 0x00, 0xc0);

    expect([...samplesOf(pcm)]).toEqual([0, 1 / 32768, 32767 / 32768, -1, -0.5]);
  });

  it('Samples are read from the middle of a larger buffer, also at odd offsets', () => {
    expect([...samplesOf(Buffer.of(9, 0x00, 0x40, 9).subarray(1, 3))]).toEqual([0.5]);
  });
});

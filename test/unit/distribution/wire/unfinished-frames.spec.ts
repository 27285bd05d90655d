import { describe, expect, it } from '@jest/globals';
import { FrameError } from '../../../../lib/extensions/distribution/wire/prelude.js';
import { UnfinishedFrames } from '../../../../lib/extensions/distribution/wire/packets.js';

const largest = 10_000;

/** The first fragment of a frame of the length. */
const begin = (frames: UnfinishedFrames, from: string, id: number, total = largest): unknown =>
  frames.add({ from, id, index: 0, total }, Uint8Array.of(id));

const go = (
  frames: UnfinishedFrames,
  from: string,
  id: number,
  index: number,
  total: number,
): unknown => frames.add({ from, id, index, total }, Uint8Array.of(id));

describe('UnfinishedFrames', () => {
  it('[11] There is room for four of the largest frames per sender, independent of others', () => {
    const frames = new UnfinishedFrames(largest, () => 0);
    for (const id of [0, 1, 2, 3]) {
      begin(frames, 'a', id);
    }

    expect(() => begin(frames, 'a', 4, 1)).toThrow('too many others are not finished');
    expect(begin(frames, 'b', 4)).toBeUndefined();
    expect(frames.cost).toBeGreaterThanOrEqual(5 * largest);
  });

  it('[11] There is room for sixteen of the largest frames in all', () => {
    const frames = new UnfinishedFrames(largest, () => 0);
    for (let id = 0; id < 16; id++) {
      begin(frames, `node-${id >> 1}`, id);
    }

    expect(() => begin(frames, 'another', 0, 1)).toThrow('too many others are not finished');
    frames.dropFrom('node-0');
    expect(begin(frames, 'another', 0)).toBeUndefined();
    expect(begin(frames, 'another', 1)).toBeUndefined();
    expect(() => begin(frames, 'another', 2, 1)).toThrow('too many others are not finished');
  });

  it('[11] Frames of a few bytes are limited in number', () => {
    const frames = new UnfinishedFrames(largest, () => 0);

    expect(() => {
      for (let id = 0; id < 100; id++) {
        begin(frames, 'a', id, 2);
      }
    }).toThrow('too many others are not finished');
  });

  it('[11] Frames that are finished, broken or dropped free their room', () => {
    const frames = new UnfinishedFrames(largest, () => 0);
    begin(frames, 'a', 1, 2);
    begin(frames, 'a', 2, 2);
    begin(frames, 'b', 3, 2);

    expect(go(frames, 'a', 1, 1, 2)).toEqual(Uint8Array.of(1, 1));
    expect(() => go(frames, 'a', 2, 2, 2)).toThrow(FrameError);
    frames.dropFrom('b');
    frames.dropFrom('nobody');
    expect(frames.cost).toBe(0);
    expect(() => go(frames, 'a', 1, 1, 2)).toThrow(FrameError);
    expect(frames.cost).toBe(0);
  });

  it('[11] Frames without progress for a minute are dropped for others', () => {
    let time = 0;
    const frames = new UnfinishedFrames(largest, () => time);
    [0, 1, 2, 3].forEach((id) => begin(frames, 'a', id));
    time = 50_000;
    go(frames, 'a', 3, 1, largest);
    time = 60_000;

    expect(() => begin(frames, 'a', 4)).toThrow('too many others are not finished');
    time = 60_001;
    expect([4, 5, 6].map((id) => begin(frames, 'a', id))).toEqual([
      undefined,
      undefined,
      undefined,
    ]);
    expect(() => begin(frames, 'a', 7)).toThrow('too many others are not finished');
    expect(go(frames, 'a', 3, 2, largest)).toBeUndefined();
    expect(() => go(frames, 'a', 0, 1, largest)).toThrow('does not follow on what came before');
  });

  it('[11] A frame that changes between its fragments is refused', () => {
    const frames = new UnfinishedFrames(largest, () => 0);
    begin(frames, 'a', 1, 3);

    expect(() => go(frames, 'a', 1, 1, 4)).toThrow('does not follow on what came before');
  });
});

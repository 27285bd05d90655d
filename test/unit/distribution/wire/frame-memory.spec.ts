import { describe, expect, it } from '@jest/globals';
import { FrameMemory } from '../../../../lib/extensions/distribution/wire/messenger.js';

const LARGE = 300_000;

describe('The memory of frames', () => {
  it('[11] Small frames never overlap, and lie together', () => {
    const memory = new FrameMemory();
    const frames = Array.from({ length: 100 }, (_, i) => memory.take(8 * (i + 1)).fill(i));

    frames.forEach((frame, i) => expect(frame.every((byte) => byte === i)).toBe(true));
    expect(new Set(frames.map(({ buffer }) => buffer)).size).toBe(1);
    expect(frames.every(({ byteOffset }) => byteOffset % 8 === 0)).toBe(true);
  });

  it('[11] A large frame gets memory of another only after that was given back', () => {
    const memory = new FrameMemory();
    const [one, other] = [memory.take(LARGE), memory.take(LARGE)];
    expect(one.buffer).not.toBe(other.buffer);
    memory.give(one);
    const again = memory.take(LARGE + 8);

    expect([again.buffer === one.buffer, again.byteLength]).toEqual([true, LARGE + 8]);
    expect(memory.take(LARGE).buffer).not.toBe(one.buffer);
  });

  it('[11] Small frames share their memory, which is not given to others', () => {
    const memory = new FrameMemory();
    const small = memory.take(8);
    memory.give(small);

    expect(memory.take(8).byteOffset).toBe(8);
    // Of the size of a slab.
    expect(memory.take(60_000).buffer).not.toBe(small.buffer);
  });

  it('[11] The memory of the largest frames is not kept', () => {
    const memory = new FrameMemory();
    const frame = memory.take(2 ** 20 + 8);
    memory.give(frame);

    expect(memory.take(2 ** 20 + 8).buffer).not.toBe(frame.buffer);
    expect(frame.buffer.byteLength).toBe(2 ** 20 + 8);
  });

  it('[11] No more than 8 MiB wait for the next frames', () => {
    const memory = new FrameMemory();
    const frames = Array.from({ length: 20 }, () => memory.take(2 ** 19));
    frames.forEach((frame) => memory.give(frame));
    const kept = new Set(frames.map(({ buffer }) => buffer));
    const next = Array.from({ length: 20 }, () => memory.take(2 ** 19));

    expect(next.filter(({ buffer }) => kept.has(buffer))).toHaveLength(16);
  });
});

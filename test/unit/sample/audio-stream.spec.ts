import { beforeEach, describe, expect, it } from '@jest/globals';
import { ConflictException } from '@nestjs/common';
import { BatchFailedError } from 'nestjs-serving';
import { AudioStream } from '../../../sample/03-audio-streams/src/audio-stream.js';
import type { Heard, Judgement } from '../../../sample/03-audio-streams/src/vad.serving.js';
import { chunkSamples } from '../../../sample/03-audio-streams/src/windows.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

describe('AudioStream', () => {
  const start = useServings();
  let failing: boolean;
  let stream: AudioStream;

  beforeEach(async () => {
    failing = false;
    const detector = await start<Judgement>({
      name: 'vad',
      // Answers the number of a chunk after that of the previous chunk, which is only in the state.
      useFactory: () => (rows: readonly unknown[]) => {
        if (failing) {
          throw new Error('no memory');
        }
        return (rows as Heard[]).map(({ window, state }) => ({
          probability: state[0]! * 1000 + window.at(-1)!,
          state: Float32Array.of(window.at(-1)!),
        }));
      },
    });
    stream = new AudioStream(detector);
  });

  it('Chunks of pieces that arrive together run in order, each with the state that the one before left', async () => {
    const pieces = Array.from({ length: 10 }, (_, index) => chunks(index + 1));
    const answers = await Promise.all(pieces.map((piece) => stream.hear(piece)));

    expect(answers.flat()).toEqual([1, 1002, 2003, 3004, 4005, 5006, 6007, 7008, 8009, 9010]);
  });

  it('A piece that completes no chunk gets an empty answer', async () => {
    expect(await stream.hear(chunks(1).subarray(0, 500))).toEqual([]);
    expect(await stream.hear(chunks(1).subarray(0, 12))).toEqual([1]);
  });

  it('A piece that does not begin at the position of the stream is refused, and the stream goes on', async () => {
    const answers = await Promise.allSettled([
      stream.hear(chunks(1), 0),
      stream.hear(chunks(3), 1024),
      stream.hear(chunks(2), 512),
      stream.hear(chunks(2), 512),
    ]);

    expect(answers).toEqual([
      { status: 'fulfilled', value: [1] },
      refused(512, 1024),
      { status: 'fulfilled', value: [1002] },
      refused(1024, 512),
    ]);
  });

  it('A failed piece leaves the stream unchanged, so that it can be sent again', async () => {
    const [first, second] = [chunks(1, 2, 3).subarray(0, 600), chunks(1, 2, 3).subarray(600)];
    await stream.hear(first);
    failing = true;
    await expect(stream.hear(second)).rejects.toThrow(BatchFailedError);
    failing = false;

    expect(await stream.hear(second, 600)).toEqual([1002, 2003]);
  });
});

/** A chunk of samples for each number. */
function chunks(...numbers: number[]): Float32Array {
  return Float32Array.from(
    { length: numbers.length * chunkSamples },
    (_, index) => numbers[Math.floor(index / chunkSamples)]!,
  );
}

/** The outcome of a piece that begins elsewhere than the stream. */
function refused(position: number, given: number): PromiseRejectedResult {
  const reason = new ConflictException(
    `The stream is at sample ${position}, and this piece begins at ${given}`,
  );
  return { status: 'rejected', reason };
}

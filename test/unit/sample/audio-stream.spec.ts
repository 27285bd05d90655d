import { beforeEach, describe, expect, it } from '@jest/globals';
import { ConflictException } from '@nestjs/common';
import { type Serving, SessionEndedError } from 'nestjs-serving';
import { AudioStream } from '../../../sample/03-audio-streams/src/audio-stream.js';
import { chunkSamples } from '../../../sample/03-audio-streams/src/windows.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

describe('AudioStream', () => {
  const start = useServings();
  let fails: (chunk: number) => boolean;
  let stream: AudioStream;

  beforeEach(async () => {
    fails = () => false;
    const detector = (await start<number>({
      name: 'vad',
      // Answers the number of a chunk after that of the previous chunk, which is only in the state.
      model: {
        useFactory:
          () =>
          (rows: readonly unknown[], { states }) =>
            (rows as Float32Array[]).map((window, i) => {
              const number = window.at(-1)!;
              if (fails(number)) {
                return new Error('no memory');
              }
              const before = (states[i] as number | undefined) ?? 0;
              states[i] = number;
              return before * 1000 + number;
            }),
        sessions: {},
      },
    })) as Serving<Float32Array, number>;
    stream = new AudioStream(detector.open());
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

  it.each([2, 3])(
    'A piece that failed at chunk %i can be sent again, and goes on there',
    async (chunk) => {
      const [first, second] = [chunks(1, 2, 3).subarray(0, 600), chunks(1, 2, 3).subarray(600)];
      await stream.hear(first);
      fails = (number) => number === chunk;
      await expect(stream.hear(second)).rejects.toThrow('no memory');
      fails = () => false;

      expect(await stream.hear(second, 600)).toEqual([1002, 2003]);
    },
  );

  it('A stream that was closed takes no more pieces', async () => {
    await stream.close();

    await expect(stream.hear(chunks(1))).rejects.toThrow(SessionEndedError);
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

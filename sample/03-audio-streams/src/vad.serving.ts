import { defineServing, Tensor } from 'nestjs-serving';
import { windowSamples } from './windows.js';

/** A chunk of one stream, with the state after the chunk before it. */
export interface Heard {
  readonly window: Float32Array;
  readonly state: Float32Array;
}

export interface Judgement {
  /** The probability of speech in the chunk, 0 to 1. */
  readonly probability: number;
  /** The state for the next chunk of the stream. */
  readonly state: Float32Array;
}

export const sampleRate = 16_000;

/** Values of recurrent state for one stream: two layers of 128 units. */
export const stateSize = 2 * 128;

/** The same for all streams. A scalar has no rows: it is shared by the batch. */
const sr = new Tensor('int64', [BigInt(sampleRate)], []);

/** Detects speech with Silero VAD, a recurrent network whose state is an ordinary input and output. */
export const vad = defineServing({
  name: 'vad',
  model: {
    file: new URL('../model/silero_vad_v6.onnx', import.meta.url),
    // The file gives the batch axes of `state` and `sr`, and no shape of this output.
    outputs: { stateN: { batchAxis: 1 } },
  },
  // Each stream has a chunk every 32 ms, so a quarter of the streams have one within 8 ms.
  batchTimeout: 8,

  preprocess({ window, state }: Heard) {
    return {
      batch: {
        input: new Tensor('float32', window, [1, windowSamples]),
        state: new Tensor('float32', state, [2, 1, 128]),
        sr,
      },
    };
  },

  postprocess({ output, stateN }: { output: Tensor; stateN: Tensor }): Judgement {
    return { probability: (output.data as Float32Array)[0]!, state: stateN.data as Float32Array };
  },
});

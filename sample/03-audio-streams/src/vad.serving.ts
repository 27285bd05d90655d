import { defineServing, Tensor } from 'nestjs-serving';
import { windowSamples } from './windows.js';

export const sampleRate = 16_000;

/** The same for all streams. A scalar has no rows: it is shared by the batch. */
const sr = new Tensor('int64', [BigInt(sampleRate)], []);

/**
 * The probability of speech in a window, 0 to 1, by Silero VAD: a recurrent network. Each stream has
 * a session, which keeps the state of the network from one window to the next.
 */
export const vad = defineServing({
  name: 'vad',
  model: {
    file: new URL('../model/silero_vad_v6.onnx', import.meta.url),
    state: { state: 'stateN' }, // Longer than a stream may be silent: streams end their sessions themselves.
    sessions: { max: 10_000, idle: 300_000 },
  },
  // Each stream has a chunk every 32 ms, so a quarter of the streams have one within 8 ms.
  batchTimeout: 8,

  preprocess(window: Float32Array) {
    return { batch: { input: new Tensor('float32', window, [1, windowSamples]), sr } };
  },

  postprocess({ output }: { output: Tensor }): number {
    return (output.data as Float32Array)[0]!;
  },
});

import { defineServing, Tensor } from 'nestjs-serving';
import { side } from './drawing.js';

export interface Prediction {
  readonly digit: number;
  /** The probability that the model gives this digit, at most 1. */
  readonly confidence: number;
}

/** Reads one handwritten digit: ink in, digit out. */
export const digits = defineServing({
  name: 'digits',
  model: new URL('../model/digits.onnx', import.meta.url),
  // On a web page 5 ms are not noticeable, and many visitors fill a batch in that time.
  batchTimeout: 5,

  preprocess(ink: Float32Array) {
    return { batch: { image: new Tensor('float32', ink, [1, side ** 2]) } };
  },

  postprocess({ probabilities }: { probabilities: Tensor }): Prediction {
    const values = probabilities.data as Float32Array;
    const confidence = Math.max(...values);
    return { digit: values.indexOf(confidence), confidence };
  },
});

import { defineServing, Tensor } from 'nestjs-serving';

/** The result for one handwritten digit. */
export interface Prediction {
  readonly digit: number;
  /** The node that has run it. */
  readonly node: string;
}

/**
 * Reads handwritten digits: 784 bytes of ink in, a digit out. The model nodes have it; the web node
 * has only its name.
 */
export const digits = defineServing({
  name: 'digits',
  model: new URL('../model/digits.onnx', import.meta.url),
  batchTimeout: 5,

  preprocess(pixels: Uint8Array) {
    const ink = Float32Array.from(pixels, (pixel) => pixel / 255);
    return { batch: { image: new Tensor('float32', ink, [1, ink.length]) } };
  },

  postprocess({ probabilities }: { probabilities: Tensor }): Prediction {
    const values = probabilities.data as Float32Array;
    return {
      digit: values.indexOf(Math.max(...values)),
      node: process.env['NODE_NAME'] ?? 'unnamed',
    };
  },
});

import { type OnnxTensor, node, onnxModel } from '../../test/fixtures/models/onnx-writer.js';
import { Layer } from './layer.js';
import { type Example, side } from './mnist.js';

/** Pixels to 128 hidden units to the probabilities of the ten digits. */
export class Classifier {
  private readonly hidden: Layer;
  private readonly output: Layer;

  constructor(random: () => number) {
    this.hidden = new Layer(side ** 2, 128, random);
    this.output = new Layer(128, 10, random);
  }

  /** One step towards the labels, at most `rate` for each parameter. */
  learn(batch: readonly Example[], rate: number): void {
    for (const { label, pixels } of batch) {
      const image = ink(pixels);
      const hidden = relu(this.hidden.forward(image));
      const probabilities = softmax(this.output.forward(hidden));
      // The gradient of the cross-entropy at the logits is the probabilities, less one for the true
      // label.
      const slope = probabilities.map(
        (probability, digit) => (probability - Number(digit === label)) / batch.length,
      );
      this.output.learn(hidden, slope);
      this.hidden.learn(
        image,
        this.output.backward(slope).map((value, unit) => (hidden[unit]! > 0 ? value : 0)),
      );
    }
    this.hidden.step(rate);
    this.output.step(rate);
  }

  classify(pixels: Uint8Array): number {
    const logits = this.output.forward(relu(this.hidden.forward(ink(pixels))));
    return logits.indexOf(Math.max(...logits));
  }

  toOnnx(): Uint8Array {
    return onnxModel({
      inputs: { image: { type: 'float32', dims: ['batch', side ** 2] } },
      outputs: { probabilities: { type: 'float32', dims: ['batch', 10] } },
      nodes: [
        node('Gemm', ['image', 'hidden.weights', 'hidden.biases'], ['hidden']),
        node('Relu', ['hidden'], ['active']),
        node('Gemm', ['active', 'output.weights', 'output.biases'], ['logits']),
        node('Softmax', ['logits'], ['probabilities'], { axis: 1 }),
      ],
      initializers: {
        ...parametersOf('hidden', this.hidden),
        ...parametersOf('output', this.output),
      },
    });
  }
}

function parametersOf(
  name: string,
  { inputs, outputs, weights, biases }: Layer,
): Record<string, OnnxTensor> {
  return {
    [`${name}.weights`]: { type: 'float32', dims: [inputs, outputs], data: weights.values },
    [`${name}.biases`]: { type: 'float32', dims: [outputs], data: biases.values },
  };
}

const ink = (pixels: Uint8Array): Float32Array => Float32Array.from(pixels, (pixel) => pixel / 255);
const relu = (values: Float32Array): Float32Array => values.map((value) => Math.max(0, value));

function softmax(logits: Float32Array): Float32Array {
  const largest = Math.max(...logits);
  const powers = logits.map((logit) => Math.exp(logit - largest));
  const sum = powers.reduce((total, power) => total + power, 0);
  return powers.map((power) => power / sum);
}

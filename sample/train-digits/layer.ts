/** A fully connected layer that learns by Adam (Kingma and Ba, https://arxiv.org/abs/1412.6980). */
export class Layer {
  /** By input, then by output, as the operator Gemm of ONNX takes them. */
  readonly weights: Parameters;
  readonly biases: Parameters;

  /**
   * Weights start uniform with the variance 2 / inputs, which suits ReLU (He et al.,
   * https://arxiv.org/abs/1502.01852).
   */
  constructor(
    readonly inputs: number,
    readonly outputs: number,
    random: () => number,
  ) {
    const limit = Math.sqrt(6 / inputs);
    this.weights = new Parameters(
      Float32Array.from({ length: inputs * outputs }, () => (2 * random() - 1) * limit),
    );
    this.biases = new Parameters(new Float32Array(outputs));
  }

  forward(input: Float32Array): Float32Array {
    const { values } = this.weights;
    const output = this.biases.values.slice();
    for (let from = 0; from < this.inputs; from++) {
      const active = input[from]!;
      // Most pixels are blank and half of the hidden units silent.
      if (active === 0) {
        continue;
      }
      for (let to = 0; to < this.outputs; to++) {
        output[to]! += active * values[from * this.outputs + to]!;
      }
    }
    return output;
  }

  /**
   * Adds up the gradients of the parameters, given the gradient of the output that `input` led to.
   */
  learn(input: Float32Array, gradient: Float32Array): void {
    const { gradients } = this.weights;
    for (let from = 0; from < this.inputs; from++) {
      const active = input[from]!;
      if (active === 0) {
        continue;
      }
      for (let to = 0; to < this.outputs; to++) {
        gradients[from * this.outputs + to]! += active * gradient[to]!;
      }
    }
    gradient.forEach((slope, to) => (this.biases.gradients[to]! += slope));
  }

  /** The gradient of the input, given that of the output. */
  backward(gradient: Float32Array): Float32Array {
    return Float32Array.from({ length: this.inputs }, (_, from) =>
      gradient.reduce(
        (sum, slope, to) => sum + slope * this.weights.values[from * this.outputs + to]!,
        0,
      ),
    );
  }

  step(rate: number): void {
    this.weights.step(rate);
    this.biases.step(rate);
  }
}

class Parameters {
  readonly gradients: Float32Array;
  private readonly mean: Float32Array;
  private readonly variance: Float32Array;
  private steps = 0;

  constructor(readonly values: Float32Array) {
    this.gradients = new Float32Array(values.length);
    this.mean = new Float32Array(values.length);
    this.variance = new Float32Array(values.length);
  }

  /** Moves against the gradients and forgets them. */
  step(rate: number, decay = 0.9, varianceDecay = 0.999): void {
    this.steps++;
    const scale = (rate * Math.sqrt(1 - varianceDecay ** this.steps)) / (1 - decay ** this.steps);
    for (let index = 0; index < this.values.length; index++) {
      const slope = this.gradients[index]!;
      this.mean[index] = decay * this.mean[index]! + (1 - decay) * slope;
      this.variance[index] =
        varianceDecay * this.variance[index]! + (1 - varianceDecay) * slope ** 2;
      this.values[index]! -=
        (scale * this.mean[index]!) / (Math.sqrt(this.variance[index]!) + 1e-8);
    }
    this.gradients.fill(0);
  }
}

import { InvalidOutputError, type Tensor } from '../../index.js';
import { isRecord, numberOfFloat16 } from '../../internal.js';

/** A model's outputs by name. */
export type Outputs = Readonly<Record<string, Tensor>>;

/**
 * The first of the named outputs that the model has, or else its only one.
 *
 * @throws InvalidOutputError if it has several others
 */
export function outputOf(owner: string, outputs: Outputs, ...names: readonly string[]): Tensor {
  const found = names.find((name) => Object.hasOwn(outputs, name));
  const [only, ...others] = Object.keys(outputs);
  const name = found ?? (others.length === 0 ? only : undefined);
  if (name === undefined) {
    throw new InvalidOutputError(
      `${owner} reads the output ${names.join(' or ')}, and its model has ` +
        `${Object.keys(outputs).join(', ')}; use a model of this task`,
    );
  }
  return outputs[name]!;
}

/** Numbers of any float type. A Float32Array is not copied. */
export function floatsOf({ type, data }: Tensor): Float32Array {
  if (data instanceof Float32Array) {
    return data;
  }
  if (type === 'float16') {
    const { buffer, byteOffset, length } = data as Uint16Array;
    return Float32Array.from(new Uint16Array(buffer, byteOffset, length), numberOfFloat16);
  }
  return Float32Array.from(data as Float64Array);
}

/** Each number as a probability by itself. */
export function sigmoid(value: number): number {
  return 1 / (1 + Math.exp(-value));
}

/** The numbers as probabilities that sum up to 1. */
export function softmax(values: readonly number[]): number[] {
  const largest = values.reduce((one, other) => Math.max(one, other), -Infinity);
  const powers = values.map((value) => Math.exp(value - largest));
  const sum = powers.reduce((total, power) => total + power, 0);
  return powers.map((power) => power / sum);
}

/** The names of a model's labels by their numbers. */
export type Labels = Readonly<Record<string, unknown>>;

/** Those of config.json. */
export function labelsIn({ id2label: labels }: Record<string, unknown>): Labels {
  return isRecord(labels) ? labels : {};
}

/** The name of a label, or `LABEL_2` without one. */
export function labelOf(labels: Labels, place: number): string {
  const label = labels[place];
  return typeof label === 'string' ? label : `LABEL_${place}`;
}

/** Names of the output with a vector for each token. */
export const HIDDEN = ['last_hidden_state', 'token_embeddings'];

/**
 * How the vectors of tokens become one: their mean, the first one's, the last one's, or
 * the largest number of each place.
 */
export type Pooling = 'mean' | 'cls' | 'last' | 'max';

/** One vector of the `tokens` vectors that follow each other in `values`. */
export function pool(values: Float32Array, tokens: number, mode: Pooling): Float32Array {
  const width = values.length / tokens;
  if (mode === 'cls' || mode === 'last') {
    const start = mode === 'cls' ? 0 : (tokens - 1) * width;
    return values.slice(start, start + width);
  }
  const vector = values.slice(0, width);
  for (let at = width; at < values.length; at++) {
    const place = at % width;
    vector[place] =
      mode === 'max' ? Math.max(vector[place]!, values[at]!) : vector[place]! + values[at]!;
  }
  return mode === 'max' ? vector : vector.map((sum) => sum / tokens);
}

/** The vector with the length 1 (L2). */
export function normalized(vector: Float32Array): Float32Array {
  const length = Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0));
  return length === 0 ? vector : vector.map((value) => value / length);
}

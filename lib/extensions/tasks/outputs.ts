import {
  InvalidOutputError,
  InvalidServingError,
  type Tensor,
  type TensorSignature,
} from '../../index.js';
import { isRecord } from '../../doors/options.js';
import { numberOfFloat16 } from '../../doors/values.js';

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

/** Outputs that only models of other tasks have. */
const OF_EMBEDDERS = [
  'last_hidden_state',
  'token_embeddings',
  'sentence_embedding',
  'image_embeds',
];

/**
 * The output that a task reads: the first of the named ones, or else the model's only one.
 *
 * @param rank the number of its axes
 * @throws InvalidServingError for a model of another task
 */
export function readOutput(
  owner: string,
  outputs: readonly TensorSignature[],
  names: readonly string[],
  rank: number,
): TensorSignature {
  const named = names.flatMap((name) => outputs.find((each) => each.name === name) ?? []);
  const [only, ...others] = outputs;
  const isOwn = others.length === 0 && only && !OF_EMBEDDERS.includes(only.name);
  const found = named[0] ?? (isOwn ? only : undefined);
  if (found?.shape.length !== rank) {
    throw otherModel(owner, `the output ${names.join(' or ')} of ${rank} axes`, outputs);
  }
  return found;
}

/** The error for a model whose outputs are those of another task. */
export function otherModel(
  owner: string,
  reads: string,
  outputs: readonly TensorSignature[],
  advice = 'use a model of this task',
): InvalidServingError {
  const has = outputs.map(
    ({ name, shape }) => `${name} [${shape.map((size) => size ?? '?').join()}]`,
  );
  const task = taskOf(outputs);
  return new InvalidServingError(
    `${owner} reads ${reads}, and its model has ${has.join(', ')}` +
      `${task === undefined ? '' : `, as models for ${task} have`}; ${advice}`,
  );
}

/** The task of a text model with these outputs, as far as they tell. */
function taskOf(outputs: readonly TensorSignature[]): string | undefined {
  const shapeOf = (name: string) => outputs.find((each) => each.name === name)?.shape;
  const logits = shapeOf('logits');
  if (logits) {
    return logits.length === 3
      ? 'tokenClassification or textGeneration'
      : logits.at(-1) === 1
        ? 'rerank'
        : 'textClassification';
  }
  if (shapeOf('image_embeds')) {
    return 'imageEmbedding';
  }
  return outputs.some(({ name }) => OF_EMBEDDERS.includes(name)) ? 'textEmbedding' : undefined;
}

/**
 * The numbers of an answer.
 *
 * @throws InvalidOutputError for one that is infinite or no number, which the model has made
 */
export function finite<Numbers extends ArrayLike<number>>(
  owner: string,
  numbers: Numbers,
): Numbers {
  for (let at = 0; at < numbers.length; at++) {
    if (!Number.isFinite(numbers[at])) {
      throw new InvalidOutputError(
        `${owner}: its model gave ${numbers[at]} in the answer to this input, which is no usable ` +
          'number; a model in half precision may have overflowed: try one of float32',
      );
    }
  }
  return numbers;
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

/** Reads the labels of config.json. */
export function labelsIn({ id2label: labels }: Record<string, unknown>): Labels {
  return isRecord(labels) ? labels : {};
}

/** 0 if config.json names no labels. */
export function countOf(labels: Labels): number {
  return Object.keys(labels).length;
}

/** @throws InvalidOutputError for a number of logits that isn't that of the labels */
export function checkWidth(owner: string, labels: Labels, width: number): void {
  const count = countOf(labels);
  if (count > 0 && width !== count) {
    throw new InvalidOutputError(
      `${owner}: its model gave ${width} logits, and its config.json names ${count} labels; use a ` +
        'model of this task',
    );
  }
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

/**
 * The modes of sentence-transformers: also the sum by the root of the count, and the mean that counts
 * each token by its place.
 */
export type PoolingMode = Pooling | 'mean-sqrt' | 'weighted-mean';

/**
 * One vector of the `tokens` vectors that follow each other in `values`, after
 * https://github.com/huggingface/sentence-transformers/blob/main/sentence_transformers/sentence_transformer/modules/pooling.py
 *
 * @param skipped the first of them, which do not count; `cls` is the first one behind them
 */
export function pool(
  values: Float32Array,
  tokens: number,
  mode: PoolingMode,
  skipped = 0,
): Float32Array {
  const width = values.length / tokens;
  if (mode === 'cls' || mode === 'last') {
    const start = (mode === 'cls' ? skipped : tokens - 1) * width;
    return values.slice(start, start + width);
  }
  const vector = new Float32Array(width).fill(mode === 'max' ? -Infinity : 0);
  let count = 0;
  for (let token = skipped; token < tokens; token++) {
    const weight = mode === 'weighted-mean' ? token + 1 : 1;
    count += weight;
    for (let place = 0, at = token * width; place < width; place++, at++) {
      vector[place] =
        mode === 'max'
          ? Math.max(vector[place]!, values[at]!)
          : vector[place]! + weight * values[at]!;
    }
  }
  const divisor = mode === 'mean-sqrt' ? Math.sqrt(count) : count;
  return mode === 'max' ? vector : vector.map((sum) => sum / divisor);
}

/** The vector with the length 1 (L2). */
export function normalized(vector: Float32Array): Float32Array {
  const length = Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0));
  return length === 0 ? vector : vector.map((value) => value / length);
}

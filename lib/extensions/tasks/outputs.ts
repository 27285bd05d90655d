import {
  InvalidOutputError,
  InvalidServingError,
  ServingLoadError,
  type Tensor,
  type TensorSignature,
} from '../../index.js';
import { isRecord } from '../../doors/options.js';
import { formatValue } from '../../doors/text.js';
import { numberOfFloat16 } from '../../doors/values.js';

export type Outputs = Readonly<Record<string, Tensor>>;

/**
 * First of the named outputs, or else the only one.
 *
 * @throws InvalidOutputError if there are several others
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

/** Outputs of other tasks' models. */
const OF_EMBEDDERS = [
  'last_hidden_state',
  'token_embeddings',
  'sentence_embedding',
  'image_embeds',
];

/**
 * First of the named outputs, or else the only one.
 *
 * @param rank the number of its axes
 * @param advice remedy for another model
 * @throws InvalidServingError for another task's model
 */
export function readOutput(
  owner: string,
  outputs: readonly TensorSignature[],
  names: readonly string[],
  rank: number,
  advice?: string,
): TensorSignature {
  const named = names.flatMap((name) => outputs.find((each) => each.name === name) ?? []);
  const [only, ...others] = outputs;
  const isOwn = others.length === 0 && only && !OF_EMBEDDERS.includes(only.name);
  const found = named[0] ?? (isOwn ? only : undefined);
  if (found?.shape.length !== rank) {
    throw otherModel(owner, `the output ${names.join(' or ')} of ${rank} axes`, outputs, advice);
  }
  return found;
}

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

/** Task of a model with these outputs, if they tell. */
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

/** @throws InvalidOutputError for an infinite or invalid number */
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

/** Numbers of any float type; a Float32Array is not copied. */
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

export function sigmoid(value: number): number {
  return 1 / (1 + Math.exp(-value));
}

export function softmax(values: readonly number[]): number[] {
  const largest = values.reduce((one, other) => Math.max(one, other), -Infinity);
  const powers = values.map((value) => Math.exp(value - largest));
  const sum = powers.reduce((total, power) => total + power, 0);
  return powers.map((power) => power / sum);
}

/** Names by their logits' places; empty for a model without. */
export type Labels = readonly string[];

/** @throws ServingLoadError for places that do not count from 0, and for other names */
export function labelsIn(name: string, config: Record<string, unknown>): Labels {
  const labels = config['id2label'] ?? {};
  const names = isRecord(labels) ? Object.keys(labels).map((_, place) => labels[place]) : [labels];
  if (names.every((each) => typeof each === 'string' || typeof each === 'number')) {
    return names.map(String);
  }
  throw new ServingLoadError(
    `config.json of ${name} has id2label ${formatValue(labels)}, and the task needs a ` +
      'text for each logit, by its place from 0 on; correct the file',
  );
}

/** @throws InvalidOutputError if logits and labels differ in number */
export function checkWidth(owner: string, labels: Labels, width: number): void {
  const { length } = labels;
  if (length > 0 && width !== length) {
    throw new InvalidOutputError(
      `${owner}: its model gave ${width} logits, and its config.json names ${length} labels; use a ` +
        'model of this task',
    );
  }
}

export function labelOf(labels: Labels, place: number): string {
  return labels[place] ?? `LABEL_${place}`;
}

/** Names of the output with a vector per token. */
export const HIDDEN = ['last_hidden_state', 'token_embeddings'];

/** Pooling of token vectors: their mean, the first, the last, or each place's largest number. */
export type Pooling = 'mean' | 'cls' | 'last' | 'max';

/**
 * Modes of sentence-transformers: also the sum by the count's root, and the mean weighted by place.
 */
export type PoolingMode = Pooling | 'mean-sqrt' | 'weighted-mean';

/**
 * Pools the `tokens` vectors in `values`, after
 * https://github.com/huggingface/sentence-transformers/blob/main/sentence_transformers/sentence_transformer/modules/pooling.py
 *
 * @param skipped the first vectors, which don't count; `cls` is the first one behind them
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
  return mode === 'max' ? vector : divided(vector, mode === 'mean-sqrt' ? Math.sqrt(count) : count);
}

/** A loop takes a tenth of the time of `map`. */
function divided(vector: Float32Array, divisor: number): Float32Array {
  const quotients = new Float32Array(vector.length);
  for (let place = 0; place < vector.length; place++) {
    quotients[place] = vector[place]! / divisor;
  }
  return quotients;
}

/** Mean of rows by their weights. */
export function meanOf<Row extends number[] | Float32Array>(
  rows: readonly Row[],
  weights: readonly number[],
): Row {
  const [first, ...others] = rows;
  if (others.length === 0) {
    return first!;
  }
  const sum = weights.reduce((total, weight) => total + weight, 0);
  const mean = (at: number): number =>
    rows.reduce((total, row, i) => total + (row[at]! * weights[i]!) / sum, 0);
  return first!.map((_, at) => mean(at)) as Row;
}

/** Vector of length 1 (L2). */
export function normalized(vector: Float32Array): Float32Array {
  let squares = 0;
  for (let place = 0; place < vector.length; place++) {
    squares += vector[place]! ** 2;
  }
  return divided(vector, Math.sqrt(squares) || 1);
}

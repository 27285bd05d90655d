import { Tensor } from 'onnxruntime-common';
import { type Storage, storageClasses } from '../../batch/tensor.js';
import { show } from '../../show.js';
import { countOf } from '../wire/element-types.js';
import { fillFromBase64, fillFromList } from './plain-elements.js';
import type { Reading } from './reading.js';

/**
 * The tensor that `{ type, dims, data }` stands for; memory is taken for it when that is known to be filled.
 *
 * @throws InvalidInputError
 */
export function readTensor(content: unknown, reading: Reading): Tensor {
  reading.countTensor();
  const { type, dims, data, ...others } = reading.partsOf(content);
  const [unknown] = Object.keys(others);
  if (unknown !== undefined) {
    reading.fail(`has ${show(unknown)}; a tensor has type, dims and data`);
  }
  if (!isTensorType(type)) {
    return reading.at('type', () => reading.fail(`is ${show(type)}; allowed are ${types.join(', ')}`));
  }
  const shape = reading.at('dims', () => readShape(dims, reading));
  return reading.at('data', () =>
    type === 'string'
      ? new Tensor('string', readStrings(data, shape, reading), shape)
      : new Tensor(type, readElements(type, data, shape, reading), shape),
  );
}

const types: readonly string[] = [...storageClasses.keys(), 'string'];

function isTensorType(type: unknown): type is Tensor.Type {
  return typeof type === 'string' && types.includes(type);
}

function readShape(dims: unknown, reading: Reading): number[] {
  const { rank } = reading.limits;
  if (!Array.isArray(dims) || dims.length > rank) {
    return reading.fail(`is ${show(dims)}; give a list of up to ${rank} axes`);
  }
  return dims.map((dim: unknown, axis) =>
    isSize(dim) ? dim : reading.at(axis, () => reading.fail(`is ${show(dim)}, and no length`)),
  );
}

function isSize(value: unknown): value is number {
  return typeof value === 'number' && Number.isInteger(value) && value >= 0 && value < 2 ** 32;
}

function readStrings(data: unknown, shape: readonly number[], reading: Reading): string[] {
  const list = listOf(data, shape, reading);
  return list.map((element, i) => {
    if (typeof element !== 'string') {
      return reading.at(i, () => reading.fail(`is ${show(element)}, and no string`));
    }
    reading.countBytes(element.length);
    return element;
  });
}

function readElements(type: Exclude<Tensor.Type, 'string'>, data: unknown, shape: readonly number[], reading: Reading) {
  const storage = storageClasses.get(type)!;
  if (typeof data === 'string' && type !== 'bool') {
    return readBase64(storage, data, shape, reading);
  }
  const list = listOf(data, shape, reading);
  reading.countBytes(list.length * storage.BYTES_PER_ELEMENT);
  const elements = new storage(list.length);
  const fault = fillFromList({ type, data: elements }, list);
  return fault === -1 ? elements : reading.at(fault, () => reading.fail(`is ${show(list[fault])}, and no ${type}`));
}

function readBase64(storage: Storage, text: string, shape: readonly number[], reading: Reading) {
  const bytes = Buffer.byteLength(text, 'base64');
  const count = countOf(shape, bytes);
  if (count * storage.BYTES_PER_ELEMENT !== bytes) {
    reading.fail(`has ${bytes} bytes of base64, which are not those of the shape ${show(shape)}`);
  }
  reading.countBytes(bytes);
  const elements = new storage(count);
  return fillFromBase64({ data: elements }, text) ? elements : reading.fail('is a string, and no base64');
}

/** A list that is as long as the shape wants. */
function listOf(data: unknown, shape: readonly number[], reading: Reading): readonly unknown[] {
  if (!Array.isArray(data)) {
    return reading.fail(`is ${show(data)}, and must be a list`);
  }
  if (countOf(shape, data.length) !== data.length) {
    reading.fail(`has ${data.length} elements, which are not those of the shape ${show(shape)}`);
  }
  return data;
}

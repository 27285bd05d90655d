import { Tensor } from 'onnxruntime-common';
import { type Storage, storageClasses } from '../../batch/tensor.js';
import { formatValue } from '../../format.js';
import {
  countOf,
  BIG_ENDIAN,
  swapOnBigEndian,
  type Block,
  type Elements,
} from '../wire/element-types.js';
import type { JsonReader } from './json-tree.js';
import { numberOfWord, wordOfNumber } from '../wire/tagged-values.js';
import type { Json } from '../wire/value-writer.js';
import { float16OfNumber, numberOfFloat16 } from './float16.js';

/**
 * The tensor of `{ type, dims, data }`. Memory is allocated only once it is known that the data
 * fills it.
 *
 * @throws InvalidInputError
 */
export function readTensor(content: unknown, reading: JsonReader): Tensor {
  reading.countTensor();
  const { type, dims, data, ...others } = reading.partsOf(content);
  const [unknown] = Object.keys(others);
  if (unknown !== undefined) {
    reading.fail(`has ${formatValue(unknown)}; a tensor has type, dims and data`);
  }
  if (!isTensorType(type)) {
    return reading.at('type', () =>
      reading.fail(`is ${formatValue(type)}; allowed are ${types.join(', ')}`),
    );
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

function readShape(dims: unknown, reading: JsonReader): number[] {
  const { rank } = reading.limits;
  if (!Array.isArray(dims) || dims.length > rank) {
    return reading.fail(`is ${formatValue(dims)}; give a list of up to ${rank} axes`);
  }
  return dims.map((dim: unknown, axis) =>
    isSize(dim)
      ? dim
      : reading.at(axis, () => reading.fail(`is ${formatValue(dim)}, and no length`)),
  );
}

function isSize(value: unknown): value is number {
  return typeof value === 'number' && Number.isInteger(value) && value >= 0 && value < 2 ** 32;
}

function readStrings(data: unknown, shape: readonly number[], reading: JsonReader): string[] {
  const list = listOf(data, shape, reading);
  return list.map((element, i) => {
    if (typeof element !== 'string') {
      return reading.at(i, () => reading.fail(`is ${formatValue(element)}, and no string`));
    }
    reading.countBytes(element.length);
    return element;
  });
}

function readElements(
  type: Exclude<Tensor.Type, 'string'>,
  data: unknown,
  shape: readonly number[],
  reading: JsonReader,
) {
  const storage = storageClasses.get(type)!;
  if (typeof data === 'string' && type !== 'bool') {
    return readBase64(storage, data, shape, reading);
  }
  const list = listOf(data, shape, reading);
  reading.countBytes(list.length * storage.BYTES_PER_ELEMENT);
  const elements = new storage(list.length);
  const fault = fillFromList({ type, data: elements }, list);
  return fault === -1
    ? elements
    : reading.at(fault, () => reading.fail(`is ${formatValue(list[fault])}, and no ${type}`));
}

function readBase64(storage: Storage, text: string, shape: readonly number[], reading: JsonReader) {
  const bytes = Buffer.byteLength(text, 'base64');
  const count = countOf(shape, bytes);
  if (count * storage.BYTES_PER_ELEMENT !== bytes) {
    reading.fail(
      `has ${bytes} bytes of base64, which are not those of the shape ${formatValue(shape)}`,
    );
  }
  reading.countBytes(bytes);
  const elements = new storage(count);
  return fillFromBase64({ data: elements }, text)
    ? elements
    : reading.fail('is a string, and no base64');
}

/** A list with the number of elements of the shape. */
function listOf(data: unknown, shape: readonly number[], reading: JsonReader): readonly unknown[] {
  if (!Array.isArray(data)) {
    return reading.fail(`is ${formatValue(data)}, and must be a list`);
  }
  if (countOf(shape, data.length) !== data.length) {
    reading.fail(
      `has ${data.length} elements, which are not those of the shape ${formatValue(shape)}`,
    );
  }
  return data;
}

/** The elements as little-endian bytes, in base64. */
export function base64Of({ data }: Pick<Block, 'data'>): string {
  const bytes = bytesOf(BIG_ENDIAN ? data.slice() : data);
  swapOnBigEndian(bytes, data.BYTES_PER_ELEMENT);
  return bytes.toString('base64');
}

/**
 * The elements in a list. Whole numbers beyond the safe range are written in digits, and numbers
 * that JSON does not have as words.
 */
export function elementsOf({ type, data }: Pick<Block, 'type' | 'data'>): readonly Json[] {
  if (isBig(data)) {
    return Array.from<bigint, Json>(data, (element) =>
      Number.isSafeInteger(Number(element)) ? Number(element) : element.toString(),
    );
  }
  if (type === 'bool') {
    return Array.from<number, Json>(data, (element) => element !== 0);
  }
  const numbers =
    type === 'float16' ? Array.from(bitsOf(data), numberOfFloat16) : Array.from<number>(data);
  return numbers.map((number) => wordOfNumber(number) ?? number);
}

/** Fills the storage from base64; false when it has another number of bytes. */
function fillFromBase64({ data }: Pick<Block, 'data'>, text: string): boolean {
  const bytes = bytesOf(data);
  const isWhole = bytes.write(text, 'base64') === bytes.byteLength;
  swapOnBigEndian(bytes, data.BYTES_PER_ELEMENT);
  return isWhole;
}

/**
 * Fills the storage from a list of that length. Returns the index of the first element that is not
 * of the type, or -1.
 */
function fillFromList(
  { type, data }: Pick<Block, 'type' | 'data'>,
  list: readonly unknown[],
): number {
  if (isBig(data)) {
    return fill(data, list, bigIntIn);
  }
  switch (type) {
    case 'bool':
      return fill(data, list, (element) =>
        typeof element === 'boolean' ? Number(element) : undefined,
      );
    case 'float16':
      return fill(bitsOf(data), list, float16In);
    case 'float32':
    case 'float64':
      return fill(data, list, numberIn, 'nearest');
    default:
      return fill(data, list, (element) => (typeof element === 'number' ? element : undefined));
  }
}

/**
 * An element that the storage would change is not of the type, except for floats, which are
 * rounded.
 */
function fill<T>(
  data: { [i: number]: T },
  list: readonly unknown[],
  read: (element: unknown) => T | undefined,
  precision: 'exact' | 'nearest' = 'exact',
): number {
  return list.findIndex((element, i) => {
    const value = read(element);
    if (value === undefined) {
      return true;
    }
    data[i] = value;
    return precision === 'exact' && data[i] !== value;
  });
}

function numberIn(element: unknown): number | undefined {
  return typeof element === 'number' ? element : numberOfWord(element);
}

function float16In(element: unknown): number | undefined {
  const number = numberIn(element);
  return number === undefined ? undefined : float16OfNumber(number);
}

/** An unsafe integer has lost digits on its way. */
function bigIntIn(element: unknown): bigint | undefined {
  return Number.isSafeInteger(element) ||
    (typeof element === 'string' && /^-?\d{1,20}$/.test(element))
    ? BigInt(element as number | string)
    : undefined;
}

function isBig(data: Elements): data is BigInt64Array | BigUint64Array {
  return data instanceof BigInt64Array || data instanceof BigUint64Array;
}

function bytesOf({ buffer, byteOffset, byteLength }: Elements): Buffer {
  return Buffer.from(buffer, byteOffset, byteLength);
}

/** Floats of 16 bits as a Uint16Array, which every version of Node has. */
function bitsOf({ buffer, byteOffset, length }: Elements): Uint16Array {
  return new Uint16Array(buffer, byteOffset, length);
}

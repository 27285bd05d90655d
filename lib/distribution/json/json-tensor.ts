import { Tensor } from 'onnxruntime-common';
import { storageClasses, type TypedData, zerosOf } from '../../batch/tensor.js';
import { formatValue } from '../../format.js';
import {
  BIG_ENDIAN,
  type Block,
  countOf,
  type Elements,
  swapOnBigEndian,
} from '../wire/element-types.js';
import { numberOfWord, wordOfNumber } from '../wire/tagged-values.js';
import type { Json } from '../wire/value-writer.js';
import { float16OfNumber, numberOfFloat16 } from './float16.js';
import type { ReadContext } from './read-context.js';

/**
 * The form of the elements of tensors and typed arrays. Strings and booleans are always in lists.
 */
export type TensorForm = 'base64' | 'list';

/**
 * The tensor of `{ type, dims, data }`. Memory is allocated only once it is known that the data
 * fills it.
 *
 * @throws InvalidInputError
 */
export function readTensor(content: unknown, context: ReadContext): Tensor {
  context.countTensor();
  const { type, dims, data, ...others } = context.partsOf(content);
  const [unknown] = Object.keys(others);
  if (unknown !== undefined) {
    context.fail(`has ${formatValue(unknown)}; a tensor has type, dims and data`);
  }
  if (!isTensorType(type)) {
    return context.fail(`is ${formatValue(type)}; allowed are ${types.join(', ')}`, 'type');
  }
  const shape = context.at('dims', () => readShape(dims, context));
  const elements = context.at('data', () =>
    typeof data === 'string' && type !== 'string' && type !== 'bool'
      ? readBase64(type, data, shape, context)
      : readList(type, data, shape, context),
  );
  return new Tensor(type, elements, shape);
}

const types: readonly string[] = [...storageClasses.keys(), 'string'];

function isTensorType(type: unknown): type is Tensor.Type {
  return typeof type === 'string' && types.includes(type);
}

function readShape(dims: unknown, context: ReadContext): number[] {
  const { rank } = context.limits;
  if (!Array.isArray(dims) || dims.length > rank) {
    return context.fail(`is ${formatValue(dims)}; give a list of up to ${rank} axes`);
  }
  return dims.map((dim: unknown, axis) =>
    isSize(dim) ? dim : context.fail(`is ${formatValue(dim)}, and no length`, axis),
  );
}

function isSize(value: unknown): value is number {
  return typeof value === 'number' && Number.isInteger(value) && value >= 0 && value < 2 ** 32;
}

function readBase64(
  type: Exclude<Tensor.Type, 'string'>,
  text: string,
  shape: readonly number[],
  context: ReadContext,
): TypedData {
  const size = storageClasses.get(type)!.BYTES_PER_ELEMENT;
  const length = Buffer.byteLength(text, 'base64');
  if (countOf(shape, length) * size !== length) {
    context.fail(
      `has ${length} bytes of base64, which are not those of the shape ${formatValue(shape)}`,
    );
  }
  context.countBytes(length);
  const elements = zerosOf(type, shape) as TypedData;
  const bytes = bytesOf(elements);
  if (bytes.write(text, 'base64') !== length) {
    context.fail('is a string, and no base64');
  }
  swapOnBigEndian(bytes, size);
  return elements;
}

function readList(
  type: Tensor.Type,
  data: unknown,
  shape: readonly number[],
  context: ReadContext,
): Tensor['data'] {
  if (!Array.isArray(data)) {
    return context.fail(`is ${formatValue(data)}, and must be a list`);
  }
  if (countOf(shape, data.length) !== data.length) {
    context.fail(
      `has ${data.length} elements, which are not those of the shape ${formatValue(shape)}`,
    );
  }
  context.countBytes(sizeOf(data, type));
  const elements = zerosOf(type, shape);
  const fault = fill(type, elements, data);
  return fault === -1
    ? elements
    : context.fail(`is ${formatValue(data[fault])}, and no ${type}`, fault);
}

/** The bytes of the elements, or as many as their strings have at least. */
function sizeOf(list: readonly unknown[], type: Tensor.Type): number {
  const storage = storageClasses.get(type);
  return storage
    ? list.length * storage.BYTES_PER_ELEMENT
    : list.reduce<number>(
        (sum, element) => sum + (typeof element === 'string' ? element.length : 0),
        0,
      );
}

/**
 * Fills the elements from a list of as many. Returns the index of the first value that is not of
 * the type, or -1.
 */
function fill(type: Tensor.Type, elements: Tensor['data'], list: readonly unknown[]): number {
  const target: { [i: number]: unknown } =
    type === 'float16' ? bitsOf(elements as TypedData) : elements;
  const read = elementReaderOf(type);
  const isRounded = type === 'float32' || type === 'float64';
  return list.findIndex((value, i) => {
    const element = read(value);
    if (element === undefined) {
      return true;
    }
    target[i] = element;
    // A typed array changes whole numbers that are out of its range.
    return !isRounded && target[i] !== element;
  });
}

/** Returns undefined for a value that is no element. */
function elementReaderOf(type: Tensor.Type): (value: unknown) => unknown {
  switch (type) {
    case 'string':
      return (value) => (typeof value === 'string' ? value : undefined);
    case 'bool':
      return (value) => (typeof value === 'boolean' ? Number(value) : undefined);
    case 'int64':
    case 'uint64':
      return bigIntIn;
    case 'float16':
      return float16In;
    case 'float32':
    case 'float64':
      return numberIn;
    default:
      return (value) => (typeof value === 'number' ? value : undefined);
  }
}

function numberIn(value: unknown): number | undefined {
  return typeof value === 'number' ? value : numberOfWord(value);
}

function float16In(value: unknown): number | undefined {
  const number = numberIn(value);
  return number === undefined ? undefined : float16OfNumber(number);
}

/** An unsafe integer has lost digits on its way. */
function bigIntIn(value: unknown): bigint | undefined {
  return Number.isSafeInteger(value) || (typeof value === 'string' && /^-?\d{1,20}$/.test(value))
    ? BigInt(value as number | string)
    : undefined;
}

/** The tensor of the block, as {@link readTensor} reads it. */
export function writeTensor(block: Block, form: TensorForm): Json {
  // Tensors have no type for clamped bytes.
  const type = block.type === 'uint8clamped' ? 'uint8' : block.type;
  const data = form === 'list' || type === 'bool' ? listOf(block) : base64Of(block);
  return { type, dims: block.dims, data };
}

export function writeStrings(dims: Json, data: Json): Json {
  return { type: 'string', dims, data };
}

/** The elements as little-endian bytes, in base64. */
function base64Of({ data }: Block): string {
  const bytes = bytesOf(BIG_ENDIAN ? data.slice() : data);
  swapOnBigEndian(bytes, data.BYTES_PER_ELEMENT);
  return bytes.toString('base64');
}

/**
 * The elements in a list. Whole numbers beyond the safe range are written in digits, and numbers
 * that JSON does not have as words.
 */
function listOf({ type, data }: Block): readonly Json[] {
  if (data instanceof BigInt64Array || data instanceof BigUint64Array) {
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

function bytesOf({ buffer, byteOffset, byteLength }: Elements): Buffer {
  return Buffer.from(buffer, byteOffset, byteLength);
}

/** Floats of 16 bits as a Uint16Array, which every version of Node has. */
function bitsOf({ buffer, byteOffset, length }: Elements): Uint16Array {
  return new Uint16Array(buffer, byteOffset, length);
}

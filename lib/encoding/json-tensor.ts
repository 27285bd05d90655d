import { isUint8Array } from 'node:util/types';
import {
  checkTensor,
  float16OfNumber,
  numberOfFloat16,
  storageClasses,
  Tensor,
  type TensorData,
  type TypedData,
  zerosOf,
} from '../core/batch/tensor.js';
import { formatValue } from '../core/format.js';
import {
  BIG_ENDIAN,
  type Block,
  countOf,
  type Elements,
  swapOnBigEndian,
  numberOfWord,
  wordOfNumber,
} from './element-types.js';
import type { Json, ReadContext } from './json.js';
import { ListInParts } from './turns.js';

/** Strings and booleans are always lists. */
export type TensorForm = 'base64' | 'list';

interface JsonElements {
  /** Name in the Open Inference Protocol. */
  readonly datatype: string;
  readonly read: (value: unknown) => unknown;
  readonly holds: string;
  /** True if JSON lacks some elements. */
  readonly isFloat?: boolean;
}

/** @param beyond least number that would be stored as Infinity */
const floatElements = (stored: (number: number) => number, beyond = Infinity) => ({
  read: (value: unknown) => {
    // Parsers turn too large numbers into Infinity.
    const isNumber = typeof value === 'number' && Math.abs(value) < beyond;
    const number = isNumber ? value : numberOfWord(value);
    return number === undefined ? undefined : stored(number);
  },
  holds: 'numbers in its range, "NaN", "Infinity", "-Infinity" and "-0"',
  isFloat: true,
});
const integerElements = {
  read: (value: unknown) => (typeof value === 'number' ? value : undefined),
  holds: 'whole numbers in its range',
};
const byteElements = { ...integerElements, holds: 'whole numbers from 0 to 255' };
const bigIntElements = {
  read: bigIntIn,
  holds: 'whole numbers in its range, beyond 2 ** 53 as strings of digits',
};

/** UINT4 and INT4 are our names: one byte per element, as in a Tensor. */
const jsonElements: Readonly<Record<Tensor.Type, JsonElements>> = {
  bool: {
    datatype: 'BOOL',
    read: (value) => (typeof value === 'boolean' ? Number(value) : undefined),
    holds: 'true and false',
  },
  uint8: { datatype: 'UINT8', ...integerElements },
  uint16: { datatype: 'UINT16', ...integerElements },
  uint32: { datatype: 'UINT32', ...integerElements },
  uint64: { datatype: 'UINT64', ...bigIntElements },
  int8: { datatype: 'INT8', ...integerElements },
  int16: { datatype: 'INT16', ...integerElements },
  int32: { datatype: 'INT32', ...integerElements },
  int64: { datatype: 'INT64', ...bigIntElements },
  float16: { datatype: 'FP16', ...floatElements(float16OfNumber, 65_520) },
  float32: { datatype: 'FP32', ...floatElements(Math.fround, 2 ** 128 - 2 ** 103) },
  float64: { datatype: 'FP64', ...floatElements(Number) },
  string: {
    datatype: 'BYTES',
    read: (value) => (typeof value === 'string' ? value : undefined),
    holds: 'strings',
  },
  uint4: { datatype: 'UINT4', ...byteElements },
  int4: { datatype: 'INT4', ...byteElements },
};

/** Follows https://github.com/kserve/open-inference-protocol */
export function datatypeOf(type: Tensor.Type): string {
  return jsonElements[type].datatype;
}

const typeByDatatype: ReadonlyMap<unknown, Tensor.Type> = new Map(
  Object.entries(jsonElements).map(([type, { datatype }]) => [datatype, type as Tensor.Type]),
);

export function typeOfDatatype(datatype: unknown): Tensor.Type | undefined {
  return typeByDatatype.get(datatype);
}

/**
 * Reads `{ shape, datatype, data }`. Allocates only memory that the data fills.
 *
 * @throws InvalidInputError
 */
export function readTensor(content: unknown, context: ReadContext): Tensor {
  context.countTensor();
  const { shape, datatype, data, ...others } = context.partsOf(content);
  const [unknown] = Object.keys(others);
  if (unknown !== undefined) {
    context.fail(`has ${formatValue(unknown)}; a tensor has shape, datatype and data`);
  }
  const type =
    typeOfDatatype(datatype) ??
    context.fail(
      `is ${formatValue(datatype)}; allowed are ${[...typeByDatatype.keys()].join(', ')}`,
      'datatype',
    );
  const dims = context.at('shape', () => readShape(shape, context));
  const elements = context.at('data', () =>
    typeof data === 'string' && !isOnlyInLists(type)
      ? readBase64(type, data, dims, context)
      : readList(type, data, dims, context),
  );
  return new Tensor(type, elements, dims);
}

function isOnlyInLists(type: string): boolean {
  return type === 'string' || type === 'bool';
}

export function readShape(shape: unknown, context: ReadContext): number[] {
  const { rank } = context.limits;
  if (!Array.isArray(shape) || shape.length > rank) {
    return context.fail(`is ${formatValue(shape)}; give a list of up to ${rank} axes`);
  }
  return shape.map((size: unknown, axis) =>
    isSize(size)
      ? size
      : context.fail(`is ${formatValue(size)}; give whole numbers from 0 to 2 ** 32 - 1`, axis),
  );
}

function isSize(value: unknown): value is number {
  return typeof value === 'number' && Number.isInteger(value) && value >= 0 && value < 2 ** 32;
}

function readBase64(
  type: Tensor.Type,
  text: string,
  dims: readonly number[],
  context: ReadContext,
): TypedData {
  const size = storageClasses.get(type)!.BYTES_PER_ELEMENT;
  const length = Buffer.byteLength(text, 'base64');
  if (countOf(dims, length) * size !== length) {
    context.fail(
      `has ${length} bytes of base64, which are not those of the shape ${formatValue(dims)}`,
    );
  }
  context.countBytes(length);
  const elements = zerosOf(type, dims) as TypedData;
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
  dims: readonly number[],
  context: ReadContext,
): TensorData {
  if (!Array.isArray(data)) {
    const allowed = isOnlyInLists(type) ? 'a list' : 'a list or base64';
    return context.fail(`is ${formatValue(data)}; give ${allowed}`);
  }
  const isNested = dims.length > 1 && Array.isArray(data[0]);
  if (isNested) {
    checkNesting(data, dims, context);
  } else if (countOf(dims, data.length) !== data.length) {
    context.fail(
      `has ${data.length} elements, which are not those of the shape ${formatValue(dims)}`,
    );
  }
  const list: readonly unknown[] = isNested ? data.flat(dims.length - 1) : data;
  if (type === 'string') {
    context.countTexts(list.length);
  }
  context.countBytes(leastBytesOf(type, list));
  const elements = zerosOf(type, dims);
  const invalid = fill(type, elements, list, context);
  if (invalid !== -1) {
    const { datatype, holds, read } = jsonElements[type];
    const path = isNested ? indicesOf(invalid, dims) : [invalid];
    const value = list[invalid];
    const isRounded = read === bigIntIn && Number.isInteger(value) && !Number.isSafeInteger(value);
    context.fail(
      isRounded
        ? 'is a number beyond 2 ** 53, which JSON has rounded; send it as a string of digits'
        : `is ${formatValue(value)}; ${datatype} holds ${holds}`,
      ...path,
    );
  }
  return elements;
}

function checkNesting(
  node: unknown,
  dims: readonly number[],
  context: ReadContext,
  axis = 0,
): void {
  if (!Array.isArray(node) || node.length !== dims[axis]) {
    context.fail(
      `is ${formatValue(node)}; for the shape ${formatValue(dims)}, ` +
        `give one flat list, or here a list of ${dims[axis]}`,
    );
  }
  if (axis < dims.length - 1) {
    node.forEach((part, i) => context.at(i, () => checkNesting(part, dims, context, axis + 1)));
  }
}

function indicesOf(index: number, dims: readonly number[]): readonly number[] {
  let rest = index;
  return dims
    .toReversed()
    .map((size) => {
      const inner = rest % size;
      rest = (rest - inner) / size;
      return inner;
    })
    .toReversed();
}

/** A lower bound for strings, which are already in memory. */
function leastBytesOf(type: Tensor.Type, list: readonly unknown[]): number {
  const storage = storageClasses.get(type);
  return storage
    ? list.length * storage.BYTES_PER_ELEMENT
    : list.reduce<number>(
        (sum, text) => sum + (typeof text === 'string' || isUint8Array(text) ? text.length : 0),
        0,
      );
}

function fill(
  type: Tensor.Type,
  elements: TensorData,
  list: readonly unknown[],
  { allowsBytes }: ReadContext,
): number {
  const read = allowsBytes && type === 'string' ? stringOrBytesIn : jsonElements[type].read;
  const target: { [i: number]: unknown } =
    type === 'float16' ? bitsOf(elements as TypedData) : elements;
  return list.findIndex((value, i) => {
    const element = read(value);
    target[i] = element ?? target[i];
    // Typed arrays alter numbers outside their range.
    return element === undefined || !(Object.is(target[i], element) || target[i] === element);
  });
}

function stringOrBytesIn(value: unknown): unknown {
  return typeof value === 'string' || isUint8Array(value) ? value : undefined;
}

/** Undefined for unsafe integers, which JSON has already rounded. */
function bigIntIn(value: unknown): bigint | undefined {
  return Number.isSafeInteger(value) || (typeof value === 'string' && /^-?\d{1,20}$/.test(value))
    ? BigInt(value as number | string)
    : undefined;
}

export function writeTensor({ type, dims, data }: Block, form: TensorForm): Json {
  // Tensors have no type for clamped bytes.
  const own = (type === 'uint8clamped' ? 'uint8' : type) as Tensor.Type;
  const inList = form === 'list' || isOnlyInLists(own);
  return {
    shape: dims,
    datatype: jsonElements[own].datatype,
    data: inList ? listOf(own, data) : base64Of(data),
  };
}

/** Numbers or texts written in about a millisecond. */
const NUMBERS_OF_A_PART = 4096;
const TEXTS_OF_A_PART = 256;

export function tensorInParts(tensor: Tensor): object {
  const { type, dims, data } = checkTensor(tensor);
  const { length } = data;
  const size = type === 'string' ? TEXTS_OF_A_PART : NUMBERS_OF_A_PART;
  if (length <= size) {
    return tensorToJson(tensor, 'list') as object;
  }
  const parts = function* (): Generator<readonly Json[]> {
    for (let at = 0; at < length; at += size) {
      const end = at + size;
      yield Array.isArray(data) ? data.slice(at, end) : listOf(type, data.subarray(at, end));
    }
  };
  return { shape: dims, datatype: jsonElements[type].datatype, data: new ListInParts(parts()) };
}

export function tensorToJson(tensor: Tensor, form: TensorForm): Json {
  const { type, dims, data } = checkTensor(tensor);
  return type === 'string' || Array.isArray(data)
    ? writeStrings(dims, data as string[])
    : writeTensor({ type, dims, data }, form);
}

export function writeStrings(shape: Json, data: Json): Json {
  return { shape, datatype: jsonElements.string.datatype, data };
}

function base64Of(data: Elements): string {
  const bytes = bytesOf(BIG_ENDIAN ? data.slice() : data);
  swapOnBigEndian(bytes, data.BYTES_PER_ELEMENT);
  return bytes.toString('base64');
}

/** Unsafe integers become digits; numbers that JSON lacks, words. */
function listOf(type: Tensor.Type, data: Elements): readonly Json[] {
  if (data instanceof BigInt64Array || data instanceof BigUint64Array) {
    return Array.from<bigint, Json>(data, (element) =>
      Number.isSafeInteger(Number(element)) ? Number(element) : element.toString(),
    );
  }
  if (type === 'bool') {
    return Array.from<number, Json>(data, (element) => element !== 0);
  }
  const isHalf = type === 'float16';
  const { isFloat = false } = jsonElements[type];
  const numbers = isHalf ? bitsOf(data) : data;
  const list: Json[] = [];
  // Iterators take ten times as long.
  for (let i = 0; i < numbers.length; i++) {
    const number = isHalf ? numberOfFloat16(numbers[i]!) : numbers[i]!;
    list.push((isFloat ? wordOfNumber(number) : undefined) ?? number);
  }
  return list;
}

function bytesOf({ buffer, byteOffset, byteLength }: Elements): Buffer {
  return Buffer.from(buffer, byteOffset, byteLength);
}

function bitsOf({ buffer, byteOffset, length }: Elements): Uint16Array {
  return new Uint16Array(buffer, byteOffset, length);
}

import { types } from 'node:util';
import ort = require('onnxruntime-common');
import { InvalidBatchError } from '../errors.js';
import { truncate, formatValue } from '../format.js';

/**
 * Required, not imported: onnxruntime-node is CommonJS, and an import would be another class than
 * its outputs'.
 */
export import Tensor = ort.Tensor;

/** The type of `new Tensor('float32', ...)`: a declaration file can name it only by an export. */
export type { TypedTensor } from 'onnxruntime-common' with { 'resolution-mode': 'require' };

export type TensorData = Tensor['data'];

export type TypedData = Exclude<TensorData, string[]>;

export interface Storage {
  readonly BYTES_PER_ELEMENT: number;
  readonly name: string;
  new (length: number): TypedData;
  new (buffer: ArrayBufferLike, offset: number, length: number): TypedData;
}

export type Elements = Pick<Tensor, 'data' | 'dims'>;

/** Accepts tensors of any copy of onnxruntime-common, unlike `instanceof`. */
export function isTensor(value: unknown): value is Tensor {
  if (
    typeof value !== 'object' ||
    value === null ||
    !('dims' in value && 'type' in value && 'data' in value)
  ) {
    return false;
  }
  const { dims, type, data } = value;
  return (
    Array.isArray(dims) &&
    typeof type === 'string' &&
    (type === 'string' ? Array.isArray(data) : ArrayBuffer.isView(data))
  );
}

const MAX_AXES = 32;

/**
 * Views the numbers or copies the strings, so later changes of the given object don't reach it.
 *
 * @param path the tensor's path in its container, for messages
 * @throws InvalidBatchError when type, shape and data do not belong together
 */
export function checkTensor({ type, data, dims }: Tensor, path = ''): Tensor {
  const shape = checkShape(dims, path);
  const size = product(shape, 0, shape.length);
  if (data.length !== size) {
    throw new InvalidBatchError(
      `${describePath(path)} holds ${data.length} elements and its shape [${shape.join(', ')}] ` +
        `needs ${size}; was its buffer transferred (a returned tensor moves to the caller: to ` +
        'return it again, keep it and return a copy), or does a byte hold several elements?',
    );
  }
  return new Tensor(
    type,
    Array.isArray(data) ? checkStrings(data, path) : checkNumbers(type, data, path),
    shape,
  );
}

export function describePath(path: string): string {
  return path === '' ? 'The tensor' : `"${truncate(path)}"`;
}

function checkShape(dims: readonly number[], path: string): number[] {
  if (dims.length > MAX_AXES) {
    throw new InvalidBatchError(
      `${describePath(path)} has ${dims.length} axes; at most ${MAX_AXES} are allowed`,
    );
  }
  const shape = [...dims];
  for (const dim of shape) {
    if (!Number.isSafeInteger(dim) || dim < 0) {
      throw new InvalidBatchError(
        `${describePath(path)} has the shape ${formatValue(shape)}; its axes must be ` +
          'whole numbers of 0 or more',
      );
    }
  }
  return shape;
}

/** An element of another type would fail the whole batch. */
function checkStrings(data: readonly string[], path: string): string[] {
  const strings: string[] = [];
  for (let i = 0; i < data.length; i++) {
    const element: unknown = data[i];
    if (typeof element !== 'string') {
      throw new InvalidBatchError(
        `${describePath(path)} is a string tensor and holds ${formatValue(element)} at ` +
          `${i}; give strings`,
      );
    }
    strings.push(element);
  }
  return strings;
}

function checkNumbers(type: Tensor.Type, data: TypedData, path: string): TypedData {
  const storage = storageClasses.get(type);
  // Half floats may be given as their 16 bits.
  if (
    !storage ||
    !(isStoredAs(data, storage.name) || (type === 'float16' && isStoredAs(data, 'Uint16Array')))
  ) {
    throw new InvalidBatchError(
      `${describePath(path)} is a ${truncate(type)} tensor and its data is ` +
        `${formatValue(data)}; make it with new Tensor()`,
    );
  }
  return new storage(data.buffer, data.byteOffset, data.length);
}

/** Works in any realm: `vm` contexts have their own classes. */
function isStoredAs(data: TypedData, name: string): boolean {
  return ArrayBuffer.isView(data) && data[Symbol.toStringTag] === name;
}

/**
 * Rebuilds a tensor from a thread: the tensor class of a `vm` context, such as Jest's, refuses
 * typed arrays of Node's own realm.
 */
export function tensorOf({ type, data, dims }: Pick<Tensor, 'type' | 'data' | 'dims'>): Tensor {
  return new Tensor(type, Array.isArray(data) ? data : inThisRealm(data), dims);
}

function inThisRealm(data: TypedData): TypedData {
  const storage = storageByName.get(data[Symbol.toStringTag]);
  return !storage || data instanceof storage
    ? data
    : new storage(data.buffer, data.byteOffset, data.length);
}

/** False once the buffer was transferred or has shrunk. */
export function isIntact({ data, size }: Tensor): boolean {
  return data.length === size;
}

/** Counts strings as UTF-8. */
export function bytesOf({ data }: Tensor): number {
  return Array.isArray(data)
    ? data.reduce((sum, text) => sum + Buffer.byteLength(text), 0)
    : data.byteLength;
}

/** Shares data. */
export function rowOf(tensor: Tensor): Tensor {
  return new Tensor(tensor.type, tensor.data, [1, ...tensor.dims]);
}

export function copyOf({ type, data, dims }: Tensor): Tensor {
  return new Tensor(type, Array.isArray(data) ? [...data] : copyOfData(data), [...dims]);
}

export function copyOfData<T extends TypedData>(data: T): T {
  return new (storageOf(data))(data);
}

/** Shares numbers. */
export function rowsOf({ type, data, dims }: Tensor, start: number, count: number): Tensor {
  const inner = product(dims, 1, dims.length);
  const [from, to] = [start * inner, (start + count) * inner];
  return new Tensor(
    type,
    Array.isArray(data) ? data.slice(from, to) : data.subarray(from, to),
    dims.with(0, count),
  );
}

export function copyOfRows({ type, data, dims }: Tensor, start: number, count: number): Tensor {
  const inner = product(dims, 1, dims.length);
  return new Tensor(type, data.slice(start * inner, (start + count) * inner), dims.with(0, count));
}

export type MemoryOf = (bytes: number) => ArrayBuffer | undefined;

/** Uncleared: write every element. */
export function blankOf(type: Tensor.Type, dims: readonly number[], memoryOf?: MemoryOf): Tensor {
  const storage = storageClasses.get(type);
  if (!storage) {
    return zeroTensor(type, dims);
  }
  const length = product(dims, 0, dims.length);
  const bytes = length * storage.BYTES_PER_ELEMENT;
  // Cleared memory would cost twice as much.
  const buffer = memoryOf?.(bytes) ?? Buffer.allocUnsafeSlow(bytes).buffer;
  return new Tensor(type, new storage(buffer, 0, length), dims);
}

export function zeroTensor(type: Tensor.Type, dims: readonly number[]): Tensor {
  return new Tensor(type, zerosOf(type, dims), dims);
}

export function zerosOf(type: Tensor.Type, dims: readonly number[]): TensorData {
  const length = product(dims, 0, dims.length);
  return type === 'string'
    ? Array.from({ length }, () => '')
    : new (storageClasses.get(type) ?? Float32Array)(length);
}

/** Node has an array class for 16-bit floats from version 24 on. */
export const storageClasses: ReadonlyMap<string, Storage> = new Map<string, Storage>([
  ['float32', Float32Array],
  ['float64', Float64Array],
  ['float16', (globalThis as { Float16Array?: Storage }).Float16Array ?? Uint16Array],
  ['int8', Int8Array],
  ['uint8', Uint8Array],
  ['bool', Uint8Array],
  ['int16', Int16Array],
  ['uint16', Uint16Array],
  ['int32', Int32Array],
  ['uint32', Uint32Array],
  ['int64', BigInt64Array],
  ['uint64', BigUint64Array],
  ['uint4', Uint8Array],
  ['int4', Uint8Array],
]);

const storageByName: ReadonlyMap<string, Storage> = new Map(
  [...storageClasses.values()].map((storage) => [storage.name, storage]),
);

export function elementSize(type: Tensor.Type): number {
  return (storageClasses.get(type) ?? Float32Array).BYTES_PER_ELEMENT;
}

export function bytesOfNumbers(data: TensorData): Uint8Array {
  const { buffer, byteOffset, byteLength } = data as TypedData;
  return new Uint8Array(buffer, byteOffset, byteLength);
}

export function asBytes({ data, dims }: Elements): Elements {
  return { data: bytesOfNumbers(data), dims: [...dims, (data as TypedData).BYTES_PER_ELEMENT] };
}

/** Not Buffer, which would share a pool's memory. */
function storageOf<T extends TypedData>(data: T): new (from: number | T) => T {
  return (Buffer.isBuffer(data) ? Uint8Array : data.constructor) as new (from: number | T) => T;
}

/**
 * Rows on axis 0 are one block in memory; a later axis has a block for each index of earlier axes.
 */
export function copyRows(
  target: Elements,
  targetStart: number,
  source: Elements,
  sourceStart: number,
  count: number,
  axis: number,
): void {
  const inner = product(source.dims, axis + 1, source.dims.length);
  if (inner * count === 0) {
    return;
  }
  const outer = product(source.dims, 0, axis);
  const sourceStride = inner * source.dims[axis]!;
  const targetStride = inner * target.dims[axis]!;
  for (let block = 0; block < outer; block++) {
    const from = block * sourceStride + sourceStart * inner;
    copyBlock(
      target.data,
      block * targetStride + targetStart * inner,
      source.data,
      from,
      count * inner,
    );
  }
}

/**
 * Like {@link copyRows}, but the target may be longer on the axis `variable`: elements beyond the
 * rows' length stay.
 */
export function copyPadded(
  target: Elements,
  targetStart: number,
  source: Elements,
  sourceStart: number,
  count: number,
  axis: number,
  variable: number,
): void {
  const last = Math.max(axis, variable);
  const inner = product(source.dims, last + 1, source.dims.length);
  const firstOf = (depth: number, start: number): number => (depth === axis ? start : 0);
  const lengthOf = (depth: number): number => (depth === axis ? count : source.dims[depth]!);
  // Elements are one block on both sides from the last of these axes on.
  const copy = (depth: number, to: number, from: number): void => {
    const toFirst = to * target.dims[depth]! + firstOf(depth, targetStart);
    const fromFirst = from * source.dims[depth]! + firstOf(depth, sourceStart);
    if (depth === last) {
      const length = lengthOf(depth) * inner;
      copyBlock(target.data, toFirst * inner, source.data, fromFirst * inner, length);
      return;
    }
    for (let index = 0; index < lengthOf(depth); index++) {
      copy(depth + 1, toFirst + index, fromFirst + index);
    }
  };
  if (inner * count > 0) {
    copy(0, 0, 0);
  }
}

function copyBlock(
  target: TensorData,
  at: number,
  source: TensorData,
  from: number,
  length: number,
): void {
  if (Array.isArray(target) || Array.isArray(source)) {
    for (let i = 0; i < length; i++) {
      target[at + i] = source[from + i]!;
    }
    return;
  }
  const block = length === source.length ? source : source.subarray(from, from + length);
  (target as { set(block: unknown, at: number): void }).set(block, at);
}

export function product(dims: readonly number[], from: number, to: number): number {
  let result = 1;
  for (let axis = from; axis < to; axis++) {
    result *= dims[axis]!;
  }
  return result;
}

/** 64-bit integers are bigint, booleans 0 or 1, half floats possibly their 16 bits. */
export type Fill = number | bigint | string;

export function resize(tensor: Tensor, axis: number, length: number): Tensor {
  const present = tensor.dims[axis]!;
  if (present === length) {
    return tensor;
  }
  const target = zeroTensor(tensor.type, tensor.dims.with(axis, length));
  copyRows(target, 0, tensor, 0, Math.min(length, present), axis);
  return target;
}

/** @throws InvalidBatchError when the type has no such element */
export function filledTensor(
  type: Tensor.Type,
  dims: readonly number[],
  fill?: Fill,
  path = '',
): Tensor {
  const target = zeroTensor(type, dims);
  if (fill !== undefined && target.size > 0 && !filled(target, fill)) {
    throw new InvalidBatchError(
      `"${path}" cannot be filled with ${formatValue(fill)}, which is no element of a ` +
        `${type} tensor`,
    );
  }
  return target;
}

/** False if the elements can't hold the value: integer arrays would truncate it silently. */
function filled(target: Tensor, fill: Fill): boolean {
  const data = target.data as { [index: number]: unknown; fill(element: unknown): unknown };
  const element = typeof data[0] === 'bigint' && Number.isInteger(fill) ? BigInt(fill) : fill;
  if (typeof element === typeof data[0]) {
    data.fill(element);
  }
  return data[0] === element || (isFraction(data[0]) && isFraction(element));
}

function isFraction(value: unknown): boolean {
  return typeof value === 'number' && !Number.isInteger(value);
}

/** Half floats are numbers: their data may be bits, on any version of Node. */
export function elementAt({ type, data }: Tensor, at: number): number | bigint | string {
  const element: number | bigint | string = data[at]!;
  return type === 'float16' && types.isUint16Array(data)
    ? numberOfFloat16(Number(element))
    : element;
}

/** Decodes IEEE 754 binary16: sign, 5 exponent bits, 10 mantissa bits. */
export function numberOfFloat16(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const mantissa = bits & 0x3ff;
  if (exponent === 0x1f) {
    return mantissa === 0 ? sign * Infinity : NaN;
  }
  return exponent === 0
    ? sign * mantissa * 2 ** -24
    : sign * (0x400 + mantissa) * 2 ** (exponent - 25);
}

/** Encodes the nearest 16-bit float; ties go to even. */
export function float16OfNumber(value: number): number {
  if (Number.isNaN(value)) {
    return 0x7e00;
  }
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  // Results are infinite from 2 ** 16; below 2 ** -14 all have the same exponent.
  const size = Math.min(Math.abs(value), 2 ** 16);
  const exponent = Math.max(Math.floor(Math.log2(size)), -14);
  // Adding 2 ** 52 rounds to whole numbers, ties to even. A mantissa too large, after rounding up
  // or an inexact logarithm, carries into the exponent.
  const mantissa = size / 2 ** (exponent - 10) + 2 ** 52 - 2 ** 52;
  return sign | (((exponent + 14) << 10) + mantissa);
}

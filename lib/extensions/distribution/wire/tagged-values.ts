import { types } from 'node:util';
import { Batch, Tensor, InvalidInputError } from '../../../index.js';
import {
  flatten,
  isPlainObject,
  checkTensor,
  isTensor,
  fromWire,
  isError,
  toWire,
  type WireError,
  type Block,
  countOf,
  elementByType,
  type ElementType,
  typeByArray,
  numberOfWord,
  wordOfNumber,
} from '../../../internal.js';
import type { WireLimits } from './limits.js';
import { FrameError } from './prelude.js';

/** A value without a JSON form: its tag, and JSON to make it from. */
export type TaggedValue = readonly [tag: string, content: unknown];

/** Collects tagged values' blocks. */
export interface BlockWriter {
  /** Adds a block and returns its number. */
  add(block: Block): number;
  /** @throws InvalidInputError if a tensor of this shape can't be sent */
  checkShape(dims: readonly number[]): void;
}

/** Tags a number that JSON would change. */
export function tagNumber(value: number): TaggedValue | undefined {
  const word = wordOfNumber(value);
  return word === undefined ? undefined : ['$n', word];
}

/** Tags a bigint in hexadecimal, which parses in linear time. */
export function tagBigInt(value: bigint): TaggedValue {
  return ['$i', value.toString(16)];
}

export const tagUndefined: TaggedValue = ['$u', 0];

/** Tags an object; undefined for kinds of objects without a tag. */
export function tagObject(value: object, sink: BlockWriter): TaggedValue | undefined {
  if (isTensor(value) && (elementByType.has(value.type) || value.type === 'string')) {
    return tagTensor(value, sink);
  }
  if (ArrayBuffer.isView(value)) {
    const type = typeByArray.get(
      (value as { [Symbol.toStringTag]?: string })[Symbol.toStringTag] ?? '',
    );
    return type && ['$a', sink.add(blockOfArray(type, value as Block['data']))];
  }
  if (types.isArrayBuffer(value)) {
    return [
      '$b',
      sink.add({ type: 'uint8', dims: [value.byteLength], data: new Uint8Array(value) }),
    ];
  }
  if (types.isDate(value)) {
    const time = Date.prototype.getTime.call(value);
    return ['$d', Number.isNaN(time) ? null : time];
  }
  if (value instanceof Batch) {
    return ['$r', partsOf(value)];
  }
  return isError(value) ? ['$e', wireError(value)] : undefined;
}

/** Ignores subclasses: a Buffer becomes a Uint8Array. */
function blockOfArray(type: ElementType, { buffer, byteOffset, length }: Block['data']): Block {
  const { storage } = elementByType.get(type)!;
  return { type, dims: [length], data: new storage(buffer, byteOffset, length) };
}

/** Makes a tag's value. `take` returns each block once, by its number. */
export function valueOf(
  [tag, content]: TaggedValue,
  take: (index: unknown) => Block,
  limits: WireLimits,
): unknown {
  const make = Object.hasOwn(makers, tag) ? makers[tag] : undefined;
  if (!make) {
    throw new FrameError('There is a tag in the value that is not known here');
  }
  return make(content, take, limits);
}

type Maker = (content: unknown, take: (index: unknown) => Block, limits: WireLimits) => unknown;

const makers: Readonly<Record<string, Maker>> = {
  $u: () => undefined,
  $n: (name) => numberOfWord(name) ?? fail('a number'),
  $i: (digits) =>
    typeof digits === 'string' && /^-?[\da-f]+$/.test(digits) ? bigIntOf(digits) : fail('a bigint'),
  $d: (time) =>
    time === null || typeof time === 'number' ? new Date(time ?? NaN) : fail('a date'),
  $t: (index, take) => tensorOf(take(index)),
  $s: (content, _, limits) => stringTensorOf(content, limits),
  $a: (index, take) => take(index).data,
  $b: (index, take) => bufferOf(take(index)),
  $e: (wire) => (isWireError(wire) ? fromWire(wire) : fail('an error')),
  $r: (parts, _, limits) => batchOf(parts, limits),
};

function fail(what: string): never {
  throw new FrameError(`The value contains ${what} that is invalid`);
}

function tagTensor(value: Tensor, sink: BlockWriter): TaggedValue {
  const { type, dims, data } = checkTensor(value);
  if (type === 'string' || Array.isArray(data)) {
    sink.checkShape(dims);
    return ['$s', [dims, data]];
  }
  return ['$t', sink.add({ type, dims, data })];
}

function tensorOf({ type, dims, data }: Block): Tensor {
  if (type === 'uint8clamped' || type === 'json' || data instanceof Uint8ClampedArray) {
    return fail('a tensor');
  }
  return new Tensor(type, data, dims);
}

function stringTensorOf(content: unknown, limits: WireLimits): Tensor {
  if (!Array.isArray(content) || content.length !== 2) {
    return fail('a tensor');
  }
  const [dims, data]: unknown[] = content;
  const isSound =
    isListOf(dims, isSize) &&
    isListOf(data, (text) => typeof text === 'string') &&
    dims.length <= limits.rank &&
    countOf(dims, data.length) === data.length;
  return isSound ? new Tensor('string', data, dims) : fail('a tensor');
}

function isListOf<T>(list: unknown, is: (element: unknown) => element is T): list is T[] {
  return Array.isArray(list) && list.every(is);
}

function isSize(value: unknown): value is number {
  return typeof value === 'number' && Number.isInteger(value) && value >= 0 && value < 2 ** 32;
}

function bufferOf({ data }: Block): ArrayBuffer {
  return data instanceof Uint8Array ? new Uint8Array(data).buffer : fail('a buffer');
}

export function bigIntOf(digits: string): bigint {
  return digits.startsWith('-') ? -BigInt(`0x${digits.slice(1)}`) : BigInt(`0x${digits}`);
}

/** A batch in a frame. Without rows it has only its key and padding. */
interface BatchParts {
  readonly key: string;
  readonly padding: number;
  readonly values?: readonly unknown[];
  readonly tensors?: unknown;
  /** The batch axis of each leaf of `tensors`, in their order. */
  readonly axes?: readonly (number | null)[];
}

function partsOf(batch: Batch): BatchParts {
  const { key, padding, template } = batch;
  if (!batch.isIntact) {
    throw new InvalidInputError(
      'The memory of a batch has been taken away since it was made; was a buffer transferred?',
    );
  }
  if (batch.size + padding === 0 || (!batch.isPlain && !template)) {
    return { key, padding };
  }
  const rows = batch.release();
  return template
    ? { key, padding, tensors: rows, axes: template.axes }
    : { key, padding, values: rows as unknown[] };
}

function batchOf(parts: unknown, { bytes }: WireLimits): Batch {
  if (!isPlainObject(parts)) {
    return fail('a batch');
  }
  const { key, padding, values, tensors, axes } = parts as Record<keyof BatchParts, unknown>;
  if (typeof key !== 'string' || !isSize(padding)) {
    return fail('a batch');
  }
  const batch = rowsOf(values, tensors, axes).withKey(key);
  // Padding rows aren't in the frame but take memory here.
  if (padding * Math.max(1, batch.bytes / Math.max(1, batch.size)) > bytes) {
    throw new FrameError(
      `Invalid batch in the value: ${padding} rows of padding take more than ${bytes} bytes`,
    );
  }
  return padding > 0 ? batch.pad(padding) : batch;
}

function rowsOf(values: unknown, tensors: unknown, axes: unknown): Batch {
  if (Array.isArray(values) && tensors === undefined) {
    return Batch.ofValues(values);
  }
  if (values !== undefined || tensors === undefined) {
    return values === undefined ? Batch.empty() : fail('a batch');
  }
  const container = flatten(tensors);
  if (!container || !isListOf(axes, isAxis) || container.leaves.length !== axes.length) {
    return fail('a batch');
  }
  const axesByPath = container.leaves.map(({ path }, i) => [path, axes[i]!] as const);
  return Batch.ofContainer(container, Object.fromEntries(axesByPath));
}

function isAxis(value: unknown): value is number | null {
  return value === null || isSize(value);
}

/** An error for other machines: without stacks, which would reveal internals. */
export function wireError(error: unknown): WireError {
  return withoutStacks(toWire(error));
}

/** True for the result of {@link wireError}. */
export function isWireError(value: unknown): value is WireError {
  if (!isPlainObject(value)) {
    return false;
  }
  const { name, message, stack, code, retryAfter, cause } = value as Record<
    keyof WireError,
    unknown
  >;
  return (
    typeof name === 'string' &&
    typeof message === 'string' &&
    stack === undefined &&
    (code === undefined || typeof code === 'string') &&
    (retryAfter === undefined || typeof retryAfter === 'number') &&
    (cause === undefined || isWireError(cause))
  );
}

function withoutStacks({ name, message, code, retryAfter, cause }: WireError): WireError {
  return {
    name,
    message,
    ...(code !== undefined && { code }),
    ...(retryAfter !== undefined && { retryAfter }),
    ...(cause && { cause: withoutStacks(cause) }),
  };
}

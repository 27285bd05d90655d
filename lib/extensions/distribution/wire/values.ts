import { Batch, InvalidInputError, RequestTooLargeError, Tensor } from '../../../index.js';
import {
  fromWire,
  isError,
  messageOf,
  toWire,
  truncate,
  typeName,
  type WireError,
} from '../../../doors/text.js';
import { checkTensor, flatten, isPlainObject, isTensor } from '../../../doors/values.js';
import {
  type Block,
  countOf,
  elementByType,
  type ElementType,
  numberOfWord,
  typeByArray,
  wordOfNumber,
} from '../../../encoding/element-types.js';
import { hasOnlyProperties, type Json } from '../../../encoding/json.js';
import type { WireLimits } from './limits.js';
import { FrameError, reading } from './prelude.js';
import { types } from 'node:util';

export interface EncodedValue {
  readonly text: string;
  readonly blocks: readonly Block[];
}

/**
 * Encodes a value as a JSON tree and blocks. A value without a JSON form becomes an object with one
 * name, its tag:
 *
 * | tag | stands for | holds |
 * | --- | --- | --- |
 * | `$u` | undefined | 0 |
 * | `$n` | NaN, Infinity, -Infinity, -0 | the word |
 * | `$i` | a bigint | hexadecimal digits, with a minus if negative |
 * | `$d` | a Date | milliseconds since 1970, or null |
 * | `$t` | a tensor | its block's number |
 * | `$s` | a tensor of strings | a list of shape and strings |
 * | `$a` | a typed array | its block's number |
 * | `$b` | an ArrayBuffer | its block's number |
 * | `$e` | an Error | name, message, code, retryAfter, other plain properties, cause |
 * | `$r` | a Batch | key, padding, and values or tensors with their axes |
 *
 * Names that begin with `$` get another `$`. An object in two places is copied twice. A hole in a
 * list becomes undefined. Symbol and non-enumerable properties are dropped. A class instance, such
 * as a DTO, is sent as its properties.
 *
 * @throws InvalidInputError for functions, symbols, cycles, and other objects, such as maps
 * @throws RequestTooLargeError beyond the limits
 */
export function encodeValue(value: unknown, limits: WireLimits): EncodedValue {
  const writer = new ValueWriter(limits);
  try {
    return { text: writer.textOf(value), blocks: writer.blocks };
  } catch (cause) {
    if (cause instanceof InvalidInputError || cause instanceof RequestTooLargeError) {
      throw cause;
    }
    throw new InvalidInputError(
      `${writer.place} cannot cross to another node: ${truncate(messageOf(cause))}`,
      { cause },
    );
  }
}

/**
 * The tree must use each block once.
 *
 * @throws FrameError if the tree wasn't made by {@link encodeValue}
 */
export function decodeValue(tree: unknown, blocks: readonly Block[], limits: WireLimits): unknown {
  return reading(() => {
    const reader = new ValueReader(blocks, limits);
    const value = reader.read(tree, 0);
    reader.end();
    return value;
  });
}

class ValueReader {
  private readonly taken: boolean[] = [];
  private used = 0;
  private nodes = 1;

  constructor(
    private readonly blocks: readonly Block[],
    private readonly limits: WireLimits,
  ) {}

  read(node: unknown, depth: number): unknown {
    if (typeof node !== 'object' || node === null) {
      return node;
    }
    if (depth >= this.limits.depth) {
      throw new FrameError(`A value lies deeper than ${this.limits.depth} levels`);
    }
    return Array.isArray(node)
      ? this.list(node, depth + 1)
      : this.names(node as Record<string, unknown>, depth + 1);
  }

  /** @throws FrameError */
  end(): void {
    if (this.used !== this.blocks.length) {
      throw new FrameError(`A value has ${this.blocks.length} blocks and names ${this.used}`);
    }
  }

  private list(list: readonly unknown[], depth: number): readonly unknown[] {
    this.count(list.length);
    return list.some(isObject) ? list.map((node) => this.read(node, depth)) : list;
  }

  private names(node: Record<string, unknown>, depth: number): unknown {
    const names = Object.keys(node);
    this.count(names.length);
    const [first] = names;
    if (first !== undefined && names.length === 1 && isTag(first)) {
      return valueOf(
        [first, this.read(node[first], depth)],
        (index) => this.take(index),
        this.limits,
      );
    }
    const parts: Record<string, unknown> = {};
    for (const name of names) {
      if (name === '__proto__' || isTag(name)) {
        throw new FrameError(`The value has the forbidden name "${name}"`);
      }
      parts[name.startsWith('$') ? name.slice(1) : name] = this.read(node[name], depth);
    }
    return parts;
  }

  /** A short frame could otherwise use one block until memory runs out. */
  private take(index: unknown): Block {
    const block = typeof index === 'number' ? this.blocks[index] : undefined;
    if (!block || this.taken[index as number]) {
      throw new FrameError('A value names a block that is not there, or not any more');
    }
    this.taken[index as number] = true;
    this.used++;
    return block;
  }

  private count(nodes: number): void {
    this.nodes += nodes;
    if (this.nodes > this.limits.nodes) {
      throw new FrameError(`A value has more than ${this.limits.nodes} parts`);
    }
  }
}

function isObject(value: unknown): value is object {
  return typeof value === 'object' && value !== null;
}

export function isTag(name: string): boolean {
  return name.startsWith('$') && !name.startsWith('$$');
}

/** The block count has 16 bits; one is the tree. */
const MOST_BLOCKS = 2 ** 16 - 2;

class ValueWriter implements BlockWriter {
  readonly blocks: Block[] = [];
  private readonly path: (string | number)[] = [];
  private nodes = 0;
  private bytes = 0;

  constructor(private readonly limits: WireLimits) {}

  get place(): string {
    return this.path.length === 0 ? 'The value' : `The value at "${truncate(this.path.join('.'))}"`;
  }

  textOf(value: unknown): string {
    const text = JSON.stringify(this.write(value, 0));
    this.bytes = this.blocks.reduce((sum, { data }) => sum + data.byteLength, 0);
    this.countBytes(Buffer.byteLength(text));
    return text;
  }

  private write(value: unknown, depth: number): Json {
    this.checkCount(++this.nodes);
    switch (typeof value) {
      case 'string':
        this.countBytes(value.length);
        return value;
      case 'boolean':
        return value;
      case 'number': {
        const leaf = tagNumber(value);
        return leaf ? this.leaf(leaf, depth) : value;
      }
      case 'bigint':
        return this.leaf(tagBigInt(value), depth);
      case 'undefined':
        return this.leaf(tagUndefined, depth);
      case 'object':
        return value === null ? null : this.object(value, depth);
      default:
        throw this.unfit(`${typeName(value)}; give plain data, tensors or typed arrays`);
    }
  }

  add(block: Block): number {
    const { tensors } = this.limits;
    if (this.blocks.length >= Math.min(tensors, MOST_BLOCKS)) {
      throw new RequestTooLargeError(
        `A value with more than ${tensors} tensors and typed arrays cannot cross to another node`,
      );
    }
    this.checkShape(block.dims);
    this.countBytes(block.data.byteLength);
    return this.blocks.push(block) - 1;
  }

  checkShape(dims: readonly number[]): void {
    const { rank } = this.limits;
    if (dims.length > rank || dims.some((dim) => dim >= 2 ** 32)) {
      const shape = truncate(dims.join(', '));
      throw this.unfit(
        `a tensor of the shape [${shape}]; give at most ${rank} axes, each shorter than 2 ** 32`,
      );
    }
  }

  private object(value: object, depth: number): Json {
    if (Array.isArray(value)) {
      return this.list(value, this.below(depth));
    }
    const leaf = tagObject(value, this);
    if (leaf) {
      return this.leaf(leaf, depth);
    }
    if (!isPlainObject(value) && !hasOnlyProperties(value)) {
      throw this.unfit(`${typeName(value)}; give plain data, tensors or typed arrays`);
    }
    return this.names(value as Record<string, unknown>, this.below(depth));
  }

  private list(list: readonly unknown[], depth: number): Json[] {
    const { length } = list;
    // A sparse list can be longer than memory allows.
    this.checkCount(this.nodes + length);
    const elements: Json[] = [];
    for (let i = 0; i < length; i++) {
      this.path.push(i);
      elements.push(this.write(list[i], depth));
      this.path.pop();
    }
    return elements;
  }

  private names(value: Record<string, unknown>, depth: number): Json {
    const parts: Record<string, Json> = {};
    for (const name of Object.keys(value)) {
      this.path.push(name);
      if (name === '__proto__') {
        throw this.unfit('of a name that no part may have');
      }
      this.countBytes(name.length);
      parts[name.startsWith('$') ? `$${name}` : name] = this.write(value[name], depth);
      this.path.pop();
    }
    return parts;
  }

  private leaf([tag, content]: TaggedValue, depth: number): Json {
    return { [tag]: this.write(content, this.below(depth)) };
  }

  private below(depth: number): number {
    if (depth >= this.limits.depth) {
      throw this.unfit(`deeper than ${this.limits.depth} levels; does the value hold itself?`);
    }
    return depth + 1;
  }

  private checkCount(nodes: number): void {
    if (nodes > this.limits.nodes) {
      throw new RequestTooLargeError(
        `A value of more than ${this.limits.nodes} parts cannot cross to another node; put ` +
          'numbers into a tensor or a typed array',
      );
    }
  }

  private countBytes(bytes: number): void {
    this.bytes += bytes;
    if (this.bytes > this.limits.bytes) {
      throw new RequestTooLargeError(
        `A value of more than ${this.limits.bytes} bytes cannot cross to another node: ` +
          '"limits.bytes" of the option "distribution" allows no more',
      );
    }
  }

  private unfit(what: string): InvalidInputError {
    return new InvalidInputError(`${this.place} cannot cross to another node: it is ${what}`);
  }
}

type TaggedValue = readonly [tag: string, content: unknown];

interface BlockWriter {
  add(block: Block): number;
  /** @throws InvalidInputError if it can't be sent */
  checkShape(dims: readonly number[]): void;
}

function tagNumber(value: number): TaggedValue | undefined {
  const word = wordOfNumber(value);
  return word === undefined ? undefined : ['$n', word];
}

/** Hexadecimal parses in linear time. */
function tagBigInt(value: bigint): TaggedValue {
  return ['$i', value.toString(16)];
}

const tagUndefined: TaggedValue = ['$u', 0];

function tagObject(value: object, sink: BlockWriter): TaggedValue | undefined {
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

/** A Buffer becomes a Uint8Array. */
function blockOfArray(type: ElementType, { buffer, byteOffset, length }: Block['data']): Block {
  const { storage } = elementByType.get(type)!;
  return { type, dims: [length], data: new storage(buffer, byteOffset, length) };
}

export function valueOf(
  [tag, content]: TaggedValue,
  take: (index: unknown) => Block,
  limits: WireLimits,
): unknown {
  const make = Object.hasOwn(makers, tag) ? makers[tag] : undefined;
  if (!make) {
    throw new FrameError(`The value has the unknown tag "${tag}"`);
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

interface BatchParts {
  readonly key: string;
  readonly padding: number;
  readonly values?: readonly unknown[];
  readonly tensors?: unknown;
  /** Batch axes of `tensors`' leaves, in order. */
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
  // Padding rows aren't in the frame but take memory.
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

/** Omits stacks, which would reveal internals. */
export function wireError(error: unknown): WireError {
  return withoutStacks(toWire(error));
}

export function isWireError(value: unknown): value is WireError {
  if (!isPlainObject(value)) {
    return false;
  }
  const { name, message, stack, code, retryAfter, details, cause } = value as Record<
    keyof WireError,
    unknown
  >;
  return (
    typeof name === 'string' &&
    typeof message === 'string' &&
    stack === undefined &&
    (code === undefined || typeof code === 'string') &&
    (retryAfter === undefined || typeof retryAfter === 'number') &&
    (details === undefined || typeof details === 'string') &&
    (cause === undefined || isWireError(cause))
  );
}

function withoutStacks({ name, message, code, retryAfter, details, cause }: WireError): WireError {
  return {
    name,
    message,
    ...(code !== undefined && { code }),
    ...(retryAfter !== undefined && { retryAfter }),
    ...(details !== undefined && { details }),
    ...(cause && { cause: withoutStacks(cause) }),
  };
}

import { isUtf8 } from 'node:buffer';
import { isPlainObject } from '../core/batch/container.js';
import { InvalidInputError, InvalidOutputError, messageOf } from '../core/errors.js';
import { formatValue, truncate, typeName } from '../core/format.js';
import { readTensor, type TensorForm, tensorToJson, writeTensor } from './json-tensor.js';
import { elementByType, type Elements, numberOfWord, typeByArray } from './element-types.js';
import type { Tensor } from 'onnxruntime-common';
import { isTensor } from '../core/batch/tensor.js';

export interface JsonLimits {
  readonly bytes: number;
  readonly tensors: number;
  readonly rank: number;
  readonly depth: number;
  /** All parts except tensor elements. */
  readonly nodes: number;
  /** Elements of text tensors, whose memory is many times their bytes. Default: any number. */
  readonly texts?: number;
}

interface ReadOptions {
  readonly limits: JsonLimits;
  readonly name: string;
  readonly source: string;
  readonly allowsInstances?: boolean;
  /**
   * Reads BYTES elements that aren't UTF-8 as Uint8Arrays in a string tensor. No runtime supports
   * that, so only functions take them.
   */
  readonly allowsBytes?: boolean;
}

export class ReadContext {
  private readonly path: (string | number)[];
  private nodes = 1;
  private texts = 0;
  private bytes = 0;
  private tensors = 0;

  constructor(private readonly options: ReadOptions) {
    this.path = [options.name];
  }

  get limits(): JsonLimits {
    return this.options.limits;
  }

  get allowsInstances(): boolean {
    return this.options.allowsInstances ?? false;
  }

  get allowsBytes(): boolean {
    return this.options.allowsBytes ?? false;
  }

  at<T>(name: string | number, read: () => T): T {
    this.path.push(name);
    const value = read();
    this.path.pop();
    return value;
  }

  /**
   * @param inner path below the current one
   * @throws InvalidInputError naming the path
   */
  fail(what: string, ...inner: readonly (string | number)[]): never {
    const path = [...this.path, ...inner].join('.');
    throw new InvalidInputError(`"${truncate(path)}" in ${this.options.source} ${what}`);
  }

  countNodes(more: number): void {
    this.nodes += more;
    if (this.nodes > this.limits.nodes) {
      this.fail(
        `is where ${this.options.source} has more than ${this.limits.nodes} parts; put numbers into a tensor`,
      );
    }
  }

  countTexts(more: number): void {
    this.texts += more;
    const { texts = Infinity } = this.limits;
    if (this.texts > texts) {
      this.fail(`is where ${this.options.source} has more than ${texts} texts; send fewer`);
    }
  }

  countBytes(more: number): void {
    this.bytes += more;
    if (this.bytes > this.limits.bytes) {
      this.fail(`is where ${this.options.source} has more than ${this.limits.bytes} bytes`);
    }
  }

  countTensor(): void {
    this.tensors++;
    if (this.tensors > this.limits.tensors) {
      this.fail(`is where ${this.options.source} has more than ${this.limits.tensors} tensors`);
    }
  }

  /** @throws InvalidInputError for anything but an object */
  partsOf(node: unknown): Readonly<Record<string, unknown>> {
    return isPlainObject(node) || (this.allowsInstances && isInstance(node))
      ? (node as Record<string, unknown>)
      : this.fail(`is ${typeName(node)}, and must be a plain object`);
  }
}

function isInstance(node: unknown): boolean {
  return typeof node === 'object' && node !== null && !Array.isArray(node);
}

/**
 * Tags for values that JSON lacks. A tag is the only name of its object:
 *
 * | name | stands for | holds |
 * | --- | --- | --- |
 * | `$tensor` | a tensor; in outputs also a typed array | `shape`, `datatype`, `data` |
 * | `$bigint` | a bigint | decimal digits, optionally with a minus |
 * | `$number` | NaN, Infinity, -Infinity, -0 | the word |
 *
 * An ordinary name that looks like a tag gets another `$`.
 */
const readers: Readonly<Record<string, (content: unknown, context: ReadContext) => unknown>> = {
  $tensor: readTensor,
  $bigint: readBigInt,
  $number: readNumber,
};

const TAG_OR_ESCAPED = /^\$+(tensor|bigint|number)$/;

export function isTagOrEscaped(name: string): boolean {
  return TAG_OR_ESCAPED.test(name);
}

/** @throws InvalidInputError naming the invalid part */
export function readJson(json: unknown, context: ReadContext): unknown {
  return readNode(json, context, 0);
}

function readNode(node: unknown, context: ReadContext, depth: number): unknown {
  switch (typeof node) {
    case 'string':
      context.countBytes(node.length);
      return node;
    case 'number':
      // Parsers turn too large numbers into Infinity.
      return Number.isFinite(node) || context.allowsInstances
        ? node
        : context.fail(`is ${node}, larger than any number`);
    case 'boolean':
      return node;
    case 'object':
      return node === null ? null : readObject(node, context, depth + 1);
    default:
      return context.fail(`is ${typeName(node)}, which is no JSON`);
  }
}

function readObject(node: object, context: ReadContext, depth: number): unknown {
  if (depth > context.limits.depth) {
    context.fail(`lies deeper than ${context.limits.depth} levels`);
  }
  if (Array.isArray(node)) {
    context.countNodes(node.length);
    return node.map((element, i) =>
      // Lists of numbers are long.
      Number.isFinite(element) ? element : context.at(i, () => readNode(element, context, depth)),
    );
  }
  if (context.allowsInstances && !hasOnlyProperties(node)) {
    return node;
  }
  const parts = context.partsOf(node);
  const names = Object.keys(parts);
  context.countNodes(names.length);
  const tag = names.find((name) => Object.hasOwn(readers, name));
  if (tag === undefined) {
    const read: Record<string, unknown> = {};
    for (const name of names) {
      const own = partName(name, context);
      const part = parts[name];
      read[own] = Number.isFinite(part)
        ? part
        : context.at(name, () => readNode(part, context, depth));
    }
    return isPlainObject(node) ? read : Object.assign(node, read);
  }
  if (names.length > 1) {
    context.fail(`has other names beside "${tag}"`);
  }
  return context.at(tag, () => readers[tag]!(parts[tag], context));
}

/** Removes the `$` that marks an ordinary name. */
function partName(name: string, context: ReadContext): string {
  if (name === '__proto__') {
    context.fail('has a forbidden name', name);
  }
  context.countBytes(name.length);
  return isTagOrEscaped(name) ? name.slice(1) : name;
}

/** Parsing more is slow. */
const MAX_DIGITS = 1000;

function readBigInt(content: unknown, context: ReadContext): bigint {
  return typeof content === 'string' && content.length <= MAX_DIGITS && /^-?\d+$/.test(content)
    ? BigInt(content)
    : context.fail(`is ${formatValue(content)}; give up to ${MAX_DIGITS} digits in a string`);
}

function readNumber(content: unknown, context: ReadContext): number {
  return (
    numberOfWord(content) ??
    context.fail(`is ${formatValue(content)}; allowed are "NaN", "Infinity", "-Infinity" and "-0"`)
  );
}

/** False for objects with a tag, such as a Date or Buffer. */
export function hasOnlyProperties(value: object): boolean {
  return Object.prototype.toString.call(value) === '[object Object]';
}

export type Json =
  null | boolean | number | string | readonly Json[] | { readonly [name: string]: Json };

/**
 * Writes tensors, typed arrays and bigints for `readJson`. Copies only values with any; copies keep
 * the class, which interceptors may check.
 *
 * @throws InvalidOutputError for a tensor with mismatched data and shape
 */
export function writeTensors(value: unknown, form: TensorForm): unknown {
  return new TensorWriter(form).write(value);
}

class TensorWriter {
  private readonly holders = new Set<object>();

  constructor(private readonly form: TensorForm) {}

  write(value: unknown): unknown {
    switch (typeof value) {
      case 'bigint':
        return { $bigint: value.toString() };
      case 'object':
        return value === null ? null : this.writeObject(value);
      default:
        return value;
    }
  }

  private writeObject(value: object): unknown {
    if (isTensor(value)) {
      return { $tensor: this.writeTensor(value) };
    }
    if (ArrayBuffer.isView(value) && !hasOwnForm(value)) {
      return this.writeArray(value);
    }
    // JSON refuses circular references.
    if (this.holders.has(value)) {
      return value;
    }
    this.holders.add(value);
    const written = this.writeHolder(value);
    this.holders.delete(value);
    return written;
  }

  private writeHolder(value: object): unknown {
    if (hasOwnForm(value)) {
      return this.write(value.toJSON());
    }
    return Array.isArray(value)
      ? this.writeList(value)
      : this.writeParts(value as Record<string, unknown>);
  }

  private writeTensor(tensor: Tensor): Json {
    try {
      return tensorToJson(tensor, this.form);
    } catch (cause) {
      // The client is not at fault.
      throw new InvalidOutputError(`The reply cannot be written as JSON: ${messageOf(cause)}`, {
        cause,
      });
    }
  }

  private writeArray(array: ArrayBufferView): unknown {
    const name = (array as { [Symbol.toStringTag]?: string })[Symbol.toStringTag];
    const type = name === undefined ? undefined : typeByArray.get(name);
    if (type === undefined) {
      return array;
    }
    const { buffer, byteOffset, length } = array as Elements;
    const data = new (elementByType.get(type)!.storage)(buffer, byteOffset, length);
    return { $tensor: writeTensor({ type, dims: [length], data }, this.form) };
  }

  private writeList(list: readonly unknown[]): unknown {
    let copy: unknown[] | undefined;
    for (let i = 0; i < list.length; i++) {
      const written = this.write(list[i]);
      if (!Object.is(written, list[i])) {
        copy ??= [...list];
        copy[i] = written;
      }
    }
    return copy ?? list;
  }

  private writeParts(value: Record<string, unknown>): unknown {
    let copy: object | undefined;
    for (const name of Object.keys(value)) {
      const part = value[name];
      const written = this.write(part);
      if (!Object.is(written, part)) {
        copy ??= copyOf(value);
        Object.defineProperty(copy, name, { value: written });
      }
    }
    return copy ?? value;
  }
}

function hasOwnForm(value: object): value is { toJSON(): unknown } {
  return 'toJSON' in value && typeof value.toJSON === 'function';
}

/** Keeps the class and turns accessors into values. */
function copyOf(value: Record<string, unknown>): object {
  const parts = Object.entries(value).map(([name, part]) => [
    name,
    { value: part, enumerable: true, configurable: true, writable: true },
  ]);
  return Object.create(
    Object.getPrototypeOf(value) as object | null,
    Object.fromEntries(parts) as PropertyDescriptorMap,
  ) as object;
}

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const COMMA = 0x2c;
/** `[` and `{` differ only in this bit, as do `]` and `}`. */
const CURLY = 0x20;
const OPENING = 0x7b;
const CLOSING = 0x7d;

/** Limits checked before parsing. */
export interface TextLimits {
  /** Nesting of lists and objects. */
  readonly depth: number;
  /** Lists and objects. */
  readonly nodes: number;
  /** Commas: nearly as many as values. */
  readonly values: number;
  /** Ends the refusal of a larger text. */
  readonly advice: string;
}

/** Counts of texts that share their limits. */
export interface TextCounts {
  nodes: number;
  values: number;
}

/**
 * The exceeded limit, if any. Call it before parsing: a parser turns two bytes into about a
 * hundred, and takes seconds for 16 MiB of brackets.
 *
 * @param counts of the texts before, to which this one's are added
 */
export function limitBeyond(
  json: Buffer,
  { depth, nodes, values }: Omit<TextLimits, 'advice'>,
  counts: TextCounts = { nodes: 0, values: 0 },
): 'depth' | 'nodes' | 'values' | undefined {
  let open = 0;
  let { nodes: lists, values: commas } = counts;
  for (let at = 0; at < json.length; at++) {
    const byte = json[at]!;
    if (byte === QUOTE) {
      at = endOfText(json, at);
    } else if (byte === COMMA) {
      if (++commas > values) {
        return 'values';
      }
    } else if ((byte | CURLY) === OPENING) {
      open++;
      lists++;
      if (open > depth || lists > nodes) {
        return open > depth ? 'depth' : 'nodes';
      }
    } else if ((byte | CURLY) === CLOSING) {
      open--;
    }
  }
  counts.nodes = lists;
  counts.values = commas;
  return undefined;
}

/** The value, or a fault such as "is not JSON: …". */
export type ParsedJson = { readonly value: unknown } | { readonly fault: string };

/** @param counts as of `limitBeyond` */
export function parseJson(
  json: Buffer | string,
  limits: TextLimits,
  counts?: TextCounts,
): ParsedJson {
  const isText = typeof json === 'string';
  if (!isText && !isUtf8(json)) {
    return { fault: 'is not UTF-8' };
  }
  switch (limitBeyond(isText ? Buffer.from(json) : json, limits, counts)) {
    case 'depth':
      return { fault: `has lists or objects deeper than ${limits.depth} levels` };
    case 'nodes':
      return { fault: `has more than ${limits.nodes} lists and objects; ${limits.advice}` };
    case 'values':
      return { fault: `has more than ${limits.values} values; ${limits.advice}` };
    default:
  }
  try {
    return { value: JSON.parse(json.toString()) as unknown };
  } catch (cause) {
    return { fault: `is not JSON: ${messageOf(cause)}` };
  }
}

function endOfText(json: Buffer, start: number): number {
  for (let end = json.indexOf(QUOTE, start + 1); end >= 0; end = json.indexOf(QUOTE, end + 1)) {
    let escapes = 0;
    while (json[end - 1 - escapes] === BACKSLASH) {
      escapes++;
    }
    if (escapes % 2 === 0) {
      return end;
    }
  }
  return json.length;
}

import { isPlainObject } from '../../batch/container.js';
import { InvalidInputError, messageOf, RequestTooLargeError } from '../../errors.js';
import { clip, kindOf } from '../../show.js';
import type { Block } from './element-types.js';
import { type Leaf, leafOfBigInt, leafOfNumber, leafOfObject, leafOfUndefined, valueOf } from './leaves.js';
import type { WireLimits } from './limits.js';
import { FrameError, reading } from './prelude.js';

export type Json = null | boolean | number | string | readonly Json[] | { readonly [name: string]: Json };

/** A value as it crosses: plain JSON, and apart from it what lies in typed arrays, of which nothing is copied yet. */
export interface EncodedValue {
  readonly tree: Json;
  readonly blocks: readonly Block[];
}

/**
 * What a value is as JSON. That for which JSON has no form is an object with one name, a tag:
 *
 * | tag | stands for | holds |
 * | --- | --- | --- |
 * | `$u` | undefined | 0 |
 * | `$n` | NaN, Infinity, -Infinity, -0 | the word |
 * | `$i` | a bigint | hexadecimal digits, a minus before them |
 * | `$d` | a Date | milliseconds since 1970, or null |
 * | `$t` | a tensor | the number of its block |
 * | `$s` | a tensor of strings | its shape and its strings, in a list |
 * | `$a` | a typed array | the number of its block |
 * | `$b` | an ArrayBuffer | the number of its block |
 * | `$e` | an Error | name, message, code, retryAfter, cause |
 * | `$r` | a Batch | key, padding, and values or tensors with their axes |
 *
 * Names that begin with `$` get another `$` in front. Lists and objects are copied wherever they stand: what was one object
 * in two places is two; a hole in a list is undefined; names that are symbols, or not enumerable, do not cross.
 *
 * @throws InvalidInputError for what cannot cross: functions, symbols, instances of classes, what holds itself
 * @throws RequestTooLargeError for more than the limits allow
 */
export function encodeValue(value: unknown, limits: WireLimits): EncodedValue {
  const writer = new Writer(limits);
  try {
    return { tree: writer.write(value, 0), blocks: writer.blocks };
  } catch (cause) {
    if (cause instanceof InvalidInputError || cause instanceof RequestTooLargeError) {
      throw cause;
    }
    throw new InvalidInputError(`${writer.place} cannot cross to another node: ${clip(messageOf(cause))}`, { cause });
  }
}

/**
 * The value of a tree; typed arrays and tensors are those of the blocks, of which each must be there once.
 *
 * @throws FrameError when it is not what {@link encodeValue} makes
 */
export function decodeValue(tree: unknown, blocks: readonly Block[], limits: WireLimits): unknown {
  return reading(() => {
    const reader = new Reader(blocks, limits);
    const value = reader.read(tree, 0);
    reader.end();
    return value;
  });
}

/** What the number of blocks is written in has 16 bits, and one is that of the tree. */
const MOST_BLOCKS = 2 ** 16 - 2;

class Writer {
  readonly blocks: Block[] = [];
  /** The names that lead to what is read now. */
  private readonly path: (string | number)[] = [];
  private nodes = 0;
  private bytes = 0;

  constructor(private readonly limits: WireLimits) {}

  get place(): string {
    return this.path.length === 0 ? 'The value' : `The value at "${clip(this.path.join('.'))}"`;
  }

  write(value: unknown, depth: number): Json {
    this.checkCount(++this.nodes);
    switch (typeof value) {
      case 'string':
        this.charge(value.length);
        return value;
      case 'boolean':
        return value;
      case 'number': {
        const leaf = leafOfNumber(value);
        return leaf ? this.leaf(leaf, depth) : value;
      }
      case 'bigint':
        return this.leaf(leafOfBigInt(value), depth);
      case 'undefined':
        return this.leaf(leafOfUndefined, depth);
      case 'object':
        return value === null ? null : this.object(value, depth + 1);
      default:
        throw this.unfit(value);
    }
  }

  private object(value: object, depth: number): Json {
    if (Array.isArray(value)) {
      this.enter(depth);
      return this.list(value, depth);
    }
    const leaf = leafOfObject(value, (block) => this.add(block));
    if (leaf) {
      return this.leaf(leaf, depth - 1);
    }
    if (!isPlainObject(value)) {
      throw this.unfit(value);
    }
    this.enter(depth);
    return this.names(value as Record<string, unknown>, depth);
  }

  private list(list: readonly unknown[], depth: number): Json[] {
    const { length } = list;
    // A list can say that it is longer than any memory.
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
        throw new InvalidInputError(`${this.place} cannot cross to another node: no part of a value may have that name`);
      }
      this.charge(name.length);
      parts[name.startsWith('$') ? `$${name}` : name] = this.write(value[name], depth);
      this.path.pop();
    }
    return parts;
  }

  private leaf([tag, content]: Leaf, depth: number): Json {
    this.enter(depth + 1);
    return { [tag]: this.write(content, depth + 1) };
  }

  private add(block: Block): number {
    const { tensors, rank } = this.limits;
    if (this.blocks.length >= Math.min(tensors, MOST_BLOCKS)) {
      throw new RequestTooLargeError(`A value with more than ${tensors} tensors and typed arrays cannot cross to another node`);
    }
    this.checkShape(block.dims, rank);
    this.charge(block.data.byteLength);
    return this.blocks.push(block) - 1;
  }

  private checkShape(dims: readonly number[], rank: number): void {
    if (dims.length > rank || dims.some((dim) => dim >= 2 ** 32)) {
      const shape = clip(dims.join(', '));
      throw new InvalidInputError(
        `${this.place} cannot cross to another node: of the shape [${shape}], with more than ${rank} axes or too long ones`,
      );
    }
  }

  private enter(depth: number): void {
    if (depth > this.limits.depth) {
      throw new InvalidInputError(
        `${this.place} cannot cross to another node: it lies deeper than ${this.limits.depth} levels; does the value hold itself?`,
      );
    }
  }

  private checkCount(nodes: number): void {
    if (nodes > this.limits.nodes) {
      throw new RequestTooLargeError(
        `A value of more than ${this.limits.nodes} parts cannot cross to another node; put numbers into a tensor or a typed array`,
      );
    }
  }

  private charge(bytes: number): void {
    this.bytes += bytes;
    if (this.bytes > this.limits.bytes) {
      throw new RequestTooLargeError(`A value of more than ${this.limits.bytes} bytes cannot cross to another node`);
    }
  }

  private unfit(value: unknown): InvalidInputError {
    return new InvalidInputError(
      `${this.place} cannot cross to another node: it is ${kindOf(value)}; give plain data, tensors or typed arrays`,
    );
  }
}

class Reader {
  private readonly taken = new Set<number>();
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
    return Array.isArray(node) ? this.list(node, depth + 1) : this.names(node as Record<string, unknown>, depth + 1);
  }

  /** What nobody asked for would have crossed for nothing. */
  end(): void {
    if (this.taken.size !== this.blocks.length) {
      throw new FrameError(`A value has ${this.blocks.length} blocks and names ${this.taken.size}`);
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
      return valueOf([first, this.read(node[first], depth)], (index) => this.take(index), this.limits);
    }
    const parts: Record<string, unknown> = {};
    for (const name of names) {
      if (name === '__proto__' || isTag(name)) {
        throw new FrameError('There is a name in the value that no part may have');
      }
      parts[name.startsWith('$') ? name.slice(1) : name] = this.read(node[name], depth);
    }
    return parts;
  }

  /** Each once: a short frame could name a block so often that there is no memory for it. */
  private take(index: unknown): Block {
    const block = typeof index === 'number' ? this.blocks[index] : undefined;
    if (!block || this.taken.has(index as number)) {
      throw new FrameError('A value names a block that is not there, or not any more');
    }
    this.taken.add(index as number);
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

/** Whether a name in a tree says what its value is, rather than what it is called. */
export function isTag(name: string): boolean {
  return name.startsWith('$') && !name.startsWith('$$');
}

import { InvalidInputError, RequestTooLargeError } from '../../../index.js';
import { messageOf, truncate, type Block } from '../../../internal.js';
import type { WireLimits } from './limits.js';
import { FrameError, reading } from './prelude.js';
import { valueOf } from './tagged-values.js';
import { ValueWriter } from './value-writer.js';

/** An encoded value: its tree as text, and its typed arrays, not yet copied. */
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
 * | `$t` | a tensor | the number of its block |
 * | `$s` | a tensor of strings | its shape and its strings, in a list |
 * | `$a` | a typed array | the number of its block |
 * | `$b` | an ArrayBuffer | the number of its block |
 * | `$e` | an Error | name, message, code, retryAfter, cause |
 * | `$r` | a Batch | key, padding, and values or tensors with their axes |
 *
 * Names that begin with `$` get another `$`. An object in two places is copied twice. A hole in a
 * list becomes undefined. Symbol and non-enumerable properties are dropped. A class instance, such
 * as a DTO, is sent as its properties.
 *
 * @throws InvalidInputError for functions, symbols, cycles, and other objects, such as maps
 * @throws RequestTooLargeError if the value exceeds the limits
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
 * Decodes a tree, which must use each block exactly once.
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

/** Makes a value from its tree and blocks. */
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

  /** @throws FrameError unless every block was used */
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
        throw new FrameError('There is a name in the value that no part may have');
      }
      parts[name.startsWith('$') ? name.slice(1) : name] = this.read(node[name], depth);
    }
    return parts;
  }

  /** A block is used once. Otherwise a short frame could use one until memory runs out. */
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

/** True if a name in a tree is a tag. */
export function isTag(name: string): boolean {
  return name.startsWith('$') && !name.startsWith('$$');
}

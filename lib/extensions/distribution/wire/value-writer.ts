import { InvalidInputError, RequestTooLargeError } from '../../../index.js';
import { isPlainObject, truncate, typeName, type Block, type Json } from '../../../internal.js';
import {
  type TaggedValue,
  tagBigInt,
  tagNumber,
  tagObject,
  tagUndefined,
  type BlockWriter,
} from './tagged-values.js';
import type { WireLimits } from './limits.js';

/** The block count has 16 bits, and one block is the tree. */
const MOST_BLOCKS = 2 ** 16 - 2;

/** Makes a value's tree and collects its blocks. */
export class ValueWriter implements BlockWriter {
  readonly blocks: Block[] = [];
  private readonly path: (string | number)[] = [];
  private nodes = 0;
  /** A lower bound of the bytes written. */
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
    if (!isPlainObject(value) && !isRecord(value)) {
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

/** A class instance without a tag, such as a DTO, is sent as its properties, as to a thread. */
function isRecord(value: object): boolean {
  return Object.prototype.toString.call(value) === '[object Object]';
}

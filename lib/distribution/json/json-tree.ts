import { isPlainObject } from '../../batch/container.js';
import { InvalidInputError } from '../../errors.js';
import { truncate, typeName } from '../../format.js';
import type { WireLimits } from '../wire/limits.js';

/**
 * The names for values that JSON has no form for. Each is the only name of its object:
 *
 * | name | stands for | holds |
 * | --- | --- | --- |
 * | `$tensor` | a tensor; in outputs a typed array, too | `type`, `dims`, `data` |
 * | `$bigint` | a bigint | decimal digits, a minus before them |
 * | `$number` | NaN, Infinity, -Infinity, -0 | the word |
 *
 * An ordinary name that looks like one of these gets another `$` in front.
 */
export type Tag = '$tensor' | '$bigint' | '$number';

export function isTag(name: string): name is Tag {
  return name === '$tensor' || name === '$bigint' || name === '$number';
}

/** The name in JSON. */
export function escapeTag(name: string): string {
  return LIKE_A_MARK.test(name) ? `$${name}` : name;
}

/** The original name. */
export function unescapeTag(name: string): string {
  return LIKE_A_MARK.test(name) ? name.slice(1) : name;
}

const LIKE_A_MARK = /^\$+(tensor|bigint|number)$/;

/** The position of a reader in a message, and the counts of what it has read. */
export class JsonReader {
  private readonly path: (string | number)[];
  private nodes = 1;
  private bytes = 0;
  private tensors = 0;

  constructor(
    readonly limits: WireLimits,
    name: string,
  ) {
    this.path = [name];
  }

  /** Runs the work with the name added to the path. */
  at<T>(name: string | number, read: () => T): T {
    this.path.push(name);
    const value = read();
    this.path.pop();
    return value;
  }

  /** @throws InvalidInputError naming the path */
  fail(what: string): never {
    throw new InvalidInputError(`"${truncate(this.path.join('.'))}" in the message ${what}`);
  }

  countNodes(more: number): void {
    this.nodes += more;
    if (this.nodes > this.limits.nodes) {
      this.fail(
        `is where the message has more than ${this.limits.nodes} parts; put numbers into a tensor`,
      );
    }
  }

  countBytes(more: number): void {
    this.bytes += more;
    if (this.bytes > this.limits.bytes) {
      this.fail(`is where the message has more than ${this.limits.bytes} bytes`);
    }
  }

  countTensor(): void {
    this.tensors++;
    if (this.tensors > this.limits.tensors) {
      this.fail(`is where the message has more than ${this.limits.tensors} tensors`);
    }
  }

  /** The properties of an object. */
  partsOf(node: unknown): Readonly<Record<string, unknown>> {
    return isPlainObject(node) && !Array.isArray(node)
      ? (node as Record<string, unknown>)
      : this.fail(`is ${typeName(node)}, and must be a plain object`);
  }
}

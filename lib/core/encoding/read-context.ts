import { isPlainObject } from '../batch/container.js';
import { InvalidInputError } from '../errors.js';
import { truncate, typeName } from '../format.js';

/** Limits for a plain JSON message. */
export interface JsonLimits {
  readonly bytes: number;
  readonly tensors: number;
  /** Maximum axes of a tensor. */
  readonly rank: number;
  /** Maximum nesting depth of lists and objects. */
  readonly depth: number;
  /** Maximum lists, objects, numbers, strings and so on, without tensor elements. */
  readonly nodes: number;
}

interface ReadOptions {
  readonly limits: JsonLimits;
  /** The whole value's name in errors. */
  readonly name: string;
  /** The source's name in errors. */
  readonly source: string;
  /** Reads class instances' properties too. */
  readonly allowsInstances?: boolean;
  /**
   * Reads BYTES elements that aren't UTF-8 as Uint8Arrays in a string tensor, which no runtime
   * supports; callers pass them to functions only.
   */
  readonly allowsBytes?: boolean;
}

/** Tracks the current path and what was read so far. */
export class ReadContext {
  private readonly path: (string | number)[];
  private nodes = 1;
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

  /** Reads the part with that name. */
  at<T>(name: string | number, read: () => T): T {
    this.path.push(name);
    const value = read();
    this.path.pop();
    return value;
  }

  /**
   * @param inner path of the invalid part below the current one
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

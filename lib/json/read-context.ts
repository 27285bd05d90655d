import { isPlainObject } from '../batch/container.js';
import { InvalidInputError } from '../errors.js';
import { truncate, typeName } from '../format.js';

/** The limits of a message of plain JSON. */
export interface JsonLimits {
  readonly bytes: number;
  /** The number of tensors. */
  readonly tensors: number;
  /** The number of axes of a tensor. */
  readonly rank: number;
  /** The nesting depth of lists and objects. */
  readonly depth: number;
  /** The lists, objects, numbers, strings and so on, without the elements of tensors. */
  readonly nodes: number;
}

interface ReadOptions {
  readonly limits: JsonLimits;
  /** The name of the whole value in errors. */
  readonly name: string;
  /** The name of its source in errors. */
  readonly source: string;
  /** Whether parts may be objects of classes, whose properties are read. */
  readonly allowsInstances?: boolean;
  /**
   * Whether elements of BYTES that are not UTF-8 are read as Uint8Arrays, in a tensor of strings.
   * No runtime has such tensors: the reader of the context gives their elements to a function.
   */
  readonly allowsBytes?: boolean;
}

/** The path to the part of a message that is read, and the counts of what was read before. */
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

  /** Reads the part of that name. */
  at<T>(name: string | number, read: () => T): T {
    this.path.push(name);
    const value = read();
    this.path.pop();
    return value;
  }

  /**
   * @param inner the name of the invalid part, unless it is the one that is read
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

  /** The properties of an object. */
  partsOf(node: unknown): Readonly<Record<string, unknown>> {
    return isPlainObject(node) || (this.allowsInstances && isInstance(node))
      ? (node as Record<string, unknown>)
      : this.fail(`is ${typeName(node)}, and must be a plain object`);
  }
}

function isInstance(node: unknown): boolean {
  return typeof node === 'object' && node !== null && !Array.isArray(node);
}

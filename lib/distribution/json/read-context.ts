import { isPlainObject } from '../../batch/container.js';
import { InvalidInputError } from '../../errors.js';
import { truncate, typeName } from '../../format.js';
import type { WireLimits } from '../wire/limits.js';

/** The path to the part of a message that is read, and the counts of what was read before. */
export class ReadContext {
  private readonly path: (string | number)[];
  private nodes = 1;
  private bytes = 0;
  private tensors = 0;

  /** @param name the name of the whole value in errors */
  constructor(
    readonly limits: WireLimits,
    name: string,
  ) {
    this.path = [name];
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
    throw new InvalidInputError(`"${truncate(path)}" in the message ${what}`);
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

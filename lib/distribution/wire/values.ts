import { InvalidInputError, messageOf, RequestTooLargeError } from '../../errors.js';
import { truncate } from '../../format.js';
import type { Block } from './element-types.js';
import type { WireLimits } from './limits.js';
import { reading } from './prelude.js';
import { ValueReader } from './value-reader.js';
import { ValueWriter } from './value-writer.js';

/** An encoded value: the text of its tree, and its typed arrays, which are not copied yet. */
export interface EncodedValue {
  readonly text: string;
  readonly blocks: readonly Block[];
}

/**
 * A value as JSON, its tree, and blocks. That for which JSON has no form is an object with one
 * name, a tag:
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
 * Names that begin with `$` get another `$` in front. Lists and objects are copied wherever they
 * stand: what was one object in two places is two; a hole in a list is undefined; names that are
 * symbols, or not enumerable, do not cross. What a class has made, such as a DTO, crosses as what
 * it holds.
 *
 * @throws InvalidInputError for what cannot cross: functions, symbols, objects of other kinds such
 * as maps and promises, what holds itself
 * @throws RequestTooLargeError for more than the limits allow
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
 * Decodes a tree. Typed arrays and tensors are its blocks, each of which must be used once.
 *
 * @throws FrameError when it was not made by {@link encodeValue}
 */
export function decodeValue(tree: unknown, blocks: readonly Block[], limits: WireLimits): unknown {
  return reading(() => {
    const reader = new ValueReader(blocks, limits);
    const value = reader.read(tree, 0);
    reader.end();
    return value;
  });
}

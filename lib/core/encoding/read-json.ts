import { isPlainObject } from '../batch/container.js';
import { formatValue, typeName } from '../format.js';
import { readTensor } from './json-tensor.js';
import { numberOfWord } from './element-types.js';
import type { ReadContext } from './read-context.js';

/**
 * Tags for values that JSON lacks. A tag is the only name of its object:
 *
 * | name | stands for | holds |
 * | --- | --- | --- |
 * | `$tensor` | a tensor; in outputs also a typed array | `shape`, `datatype`, `data` |
 * | `$bigint` | a bigint | decimal digits, optionally with a minus |
 * | `$number` | NaN, Infinity, -Infinity, -0 | the word |
 *
 * An ordinary name that looks like a tag gets another `$` in front.
 */
const readers: Readonly<Record<string, (content: unknown, context: ReadContext) => unknown>> = {
  $tensor: readTensor,
  $bigint: readBigInt,
  $number: readNumber,
};

const TAG_OR_ESCAPED = /^\$+(tensor|bigint|number)$/;

/** True if an ordinary name needs another `$` in front. */
export function isTagOrEscaped(name: string): boolean {
  return TAG_OR_ESCAPED.test(name);
}

/**
 * Reads plain JSON.
 *
 * @throws InvalidInputError naming the invalid part
 */
export function readJson(json: unknown, context: ReadContext): unknown {
  return readNode(json, context, 0);
}

function readNode(node: unknown, context: ReadContext, depth: number): unknown {
  switch (typeof node) {
    case 'string':
      context.countBytes(node.length);
      return node;
    case 'number':
      // JSON has no infinite numbers, but parsers turn too large ones into Infinity.
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
    return node.map((element, i) => context.at(i, () => readNode(element, context, depth)));
  }
  if (context.allowsInstances && !isRecord(node)) {
    return node;
  }
  const parts = context.partsOf(node);
  const names = Object.keys(parts);
  context.countNodes(names.length);
  const tag = names.find((name) => Object.hasOwn(readers, name));
  if (tag === undefined) {
    const read = Object.fromEntries(
      names.map((name) => context.at(name, () => readPart(name, parts[name], context, depth))),
    );
    return isPlainObject(node) ? read : Object.assign(node, read);
  }
  if (names.length > 1) {
    context.fail(`has other names beside "${tag}"`);
  }
  return context.at(tag, () => readers[tag]!(parts[tag], context));
}

function readPart(
  name: string,
  part: unknown,
  context: ReadContext,
  depth: number,
): readonly [string, unknown] {
  if (name === '__proto__') {
    context.fail('has a name that no part may have');
  }
  context.countBytes(name.length);
  return [isTagOrEscaped(name) ? name.slice(1) : name, readNode(part, context, depth)];
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

/** False for objects such as a Date or Buffer. */
function isRecord(value: object): boolean {
  return Object.prototype.toString.call(value) === '[object Object]';
}

export type Json =
  null | boolean | number | string | readonly Json[] | { readonly [name: string]: Json };

import { STATUS_CODES } from 'node:http';
import {
  fromWire,
  InvalidOutputError,
  isServingError,
  messageOf,
  type ServingError,
  type WireError,
} from '../../errors.js';
import { formatValue, typeName } from '../../format.js';
import { clientErrorOf } from '../../serving-rpc-exception.filter.js';
import type { Block } from '../wire/element-types.js';
import type { WireLimits } from '../wire/limits.js';
import { bigIntOf, numberOfWord } from '../wire/tagged-values.js';
import { isTag, encodeValue } from '../wire/values.js';
import type { Json } from '../wire/value-writer.js';
import { readTensor, type TensorForm, writeStrings, writeTensor } from './json-tensor.js';
import { ReadContext } from './read-context.js';

/**
 * The names for values that JSON has no form for. Each is the only name of its object:
 *
 * | name | stands for | holds |
 * | --- | --- | --- |
 * | `$tensor` | a tensor; in outputs a typed array, too | `shape`, `datatype`, `data` |
 * | `$bigint` | a bigint | decimal digits, a minus before them |
 * | `$number` | NaN, Infinity, -Infinity, -0 | the word |
 *
 * An ordinary name that looks like one of these gets another `$` in front.
 */
const readers: Readonly<Record<string, (content: unknown, context: ReadContext) => unknown>> = {
  $tensor: readTensor,
  $bigint: readBigInt,
  $number: readNumber,
};

const TAG_OR_ESCAPED = /^\$+(tensor|bigint|number)$/;

/**
 * The value of plain JSON.
 *
 * @param name the name of the value in errors
 * @throws InvalidInputError naming the invalid part
 */
export function readJson(json: unknown, limits: WireLimits, name: string): unknown {
  return readNode(json, new ReadContext(limits, name), 0);
}

function readNode(node: unknown, context: ReadContext, depth: number): unknown {
  switch (typeof node) {
    case 'string':
      context.countBytes(node.length);
      return node;
    case 'number':
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
  const parts = context.partsOf(node);
  const names = Object.keys(parts);
  context.countNodes(names.length);
  const tag = names.find((name) => Object.hasOwn(readers, name));
  if (tag === undefined) {
    return Object.fromEntries(
      names.map((name) => context.at(name, () => readPart(name, parts[name], context, depth))),
    );
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
  return [TAG_OR_ESCAPED.test(name) ? name.slice(1) : name, readNode(part, context, depth)];
}

/** Reading more takes long. */
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

/**
 * The value as plain JSON, which {@link readJson} reads. As in all JSON, a Date is a string, and
 * undefined is omitted, or null in a list. An Error is what clients may read of it.
 *
 * @throws InvalidOutputError for batches, and for values that cannot be sent to other nodes
 */
export function writeJson(value: unknown, form: TensorForm, limits: WireLimits): Json {
  try {
    const { text, blocks } = encodeValue(value, limits);
    return writeNode(JSON.parse(text) as Json, blocks, form) ?? null;
  } catch (cause) {
    throw new InvalidOutputError(`The output cannot be written as JSON: ${messageOf(cause)}`, {
      cause,
    });
  }
}

function writeNode(node: Json, blocks: readonly Block[], form: TensorForm): Json | undefined {
  if (typeof node !== 'object' || node === null) {
    return node;
  }
  if (isList(node)) {
    return node.map((element) => writeNode(element, blocks, form) ?? null);
  }
  const parts = Object.entries(node);
  const [first] = parts;
  if (first && isTag(first[0])) {
    return writeTagged(...first, blocks, form);
  }
  return Object.fromEntries(
    parts.flatMap(([name, part]) => {
      const written = writeNode(part, blocks, form);
      return written === undefined ? [] : [[writtenName(name), written]];
    }),
  );
}

/** The name in JSON. The tree of {@link encodeValue} has a `$` in front of all names with one. */
function writtenName(name: string): string {
  return name.startsWith('$') && !TAG_OR_ESCAPED.test(name.slice(1)) ? name.slice(1) : name;
}

/** The tags are those of {@link encodeValue}. */
function writeTagged(
  tag: string,
  content: Json,
  blocks: readonly Block[],
  form: TensorForm,
): Json | undefined {
  switch (tag) {
    case '$u':
      return undefined;
    case '$n':
      return { $number: content };
    case '$i':
      return { $bigint: bigIntOf(content as string).toString() };
    case '$d':
      return content === null ? null : new Date(Number(content)).toISOString();
    case '$s': {
      const [shape, data] = content as readonly [Json, Json];
      return { $tensor: writeStrings(shape, data) };
    }
    case '$e':
      return { ...jsonErrorOf(fromWire(content as unknown as WireError)) };
    case '$r':
      throw new InvalidOutputError('it holds a batch');
    default:
      return { $tensor: writeTensor(blocks[Number(content)]!, form) };
  }
}

function isList(node: Json): node is readonly Json[] {
  return Array.isArray(node);
}

/** The form of an error for clients. */
export function jsonErrorOf(error: unknown): ReturnType<ServingError['toJSON']> {
  return isServingError(error)
    ? clientErrorOf(error)
    : { name: 'Error', code: 'INTERNAL', statusCode: 500, message: STATUS_CODES[500]! };
}

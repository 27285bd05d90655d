import { STATUS_CODES } from 'node:http';
import { InvalidOutputError, isServingError, type ServingError } from '../../../index.js';
import {
  fromWire,
  messageOf,
  type WireError,
  clientErrorOf,
  type Block,
  type Json,
  isTagOrEscaped,
  type TensorForm,
  writeStrings,
  writeTensor,
} from '../../../internal.js';
import type { WireLimits } from '../wire/limits.js';
import { bigIntOf } from '../wire/tagged-values.js';
import { isTag, encodeValue } from '../wire/values.js';

/**
 * Writes JSON for {@link readJson}. A Date becomes a string; undefined is omitted, or null in a
 * list. An Error keeps what clients may see.
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

/** Removes the `$` that {@link encodeValue} adds. */
function writtenName(name: string): string {
  return name.startsWith('$') && !isTagOrEscaped(name.slice(1)) ? name.slice(1) : name;
}

/** Writes a value tagged by {@link encodeValue}. */
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

/** An error as clients see it. */
export function jsonErrorOf(error: unknown): ReturnType<ServingError['toJSON']> {
  return isServingError(error)
    ? clientErrorOf(error)
    : { name: 'Error', code: 'INTERNAL', statusCode: 500, message: STATUS_CODES[500]! };
}

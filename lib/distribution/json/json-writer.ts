import { fromWire, InvalidOutputError, messageOf, type WireError } from '../../errors.js';
import type { Block } from '../wire/element-types.js';
import { bigIntOf } from '../wire/tagged-values.js';
import type { WireLimits } from '../wire/limits.js';
import type { Json } from '../wire/value-writer.js';
import { encodeValue, isTag } from '../wire/values.js';
import { escapeTag } from './json-tree.js';
import { jsonErrorOf } from './json-answer.js';
import { base64Of, elementsOf } from './json-tensor.js';

/**
 * The form of the elements of tensors and typed arrays. Strings and booleans are always in lists.
 */
export type TensorForm = 'base64' | 'list';

/**
 * The value as plain JSON, see {@link Tag}. As in all JSON, a Date is a string, and undefined is
 * omitted, or null in a list. An Error is what clients may read of it.
 *
 * @throws InvalidOutputError for batches, and for values that cannot be sent to other nodes
 */
export function writeJson(value: unknown, form: TensorForm, limits: WireLimits): Json {
  try {
    const { text, blocks } = encodeValue(value, limits);
    return writeNode(JSON.parse(text) as Json, (index) => writeBlock(blocks[index]!, form)) ?? null;
  } catch (cause) {
    throw new InvalidOutputError(`The output cannot be written as JSON: ${messageOf(cause)}`, {
      cause,
    });
  }
}

type WriteBlock = (index: number) => Json;

function writeNode(node: Json, block: WriteBlock): Json | undefined {
  if (typeof node !== 'object' || node === null) {
    return node;
  }
  if (isList(node)) {
    return node.map((element) => writeNode(element, block) ?? null);
  }
  const parts = Object.entries(node);
  const [first] = parts;
  return first && isTag(first[0])
    ? writeLeaf(...first, block)
    : Object.fromEntries(writeParts(parts, block));
}

function* writeParts(
  parts: readonly (readonly [string, Json])[],
  block: WriteBlock,
): Generator<[string, Json]> {
  for (const [name, part] of parts) {
    const written = writeNode(part, block);
    if (written !== undefined) {
      yield [escapeTag(name.startsWith('$') ? name.slice(1) : name), written];
    }
  }
}

/** The tags are those of {@link encodeValue}. */
function writeLeaf(tag: string, content: Json, block: WriteBlock): Json | undefined {
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
      const [dims, data] = content as readonly [Json, Json];
      return { $tensor: { type: 'string', dims, data } };
    }
    case '$e':
      return { ...jsonErrorOf(fromWire(content as unknown as WireError)) };
    case '$r':
      throw new InvalidOutputError('it holds a batch');
    default:
      return block(Number(content));
  }
}

function writeBlock(block: Block, form: TensorForm): Json {
  // Tensors have no type for clamped bytes.
  const type = block.type === 'uint8clamped' ? 'uint8' : block.type;
  const data = form === 'list' || type === 'bool' ? elementsOf(block) : base64Of(block);
  return { $tensor: { type, dims: block.dims, data } };
}

function isList(node: Json): node is readonly Json[] {
  return Array.isArray(node);
}

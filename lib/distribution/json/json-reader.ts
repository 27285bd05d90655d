import { typeName, formatValue } from '../../format.js';
import type { WireLimits } from '../wire/limits.js';
import { numberOfWord } from '../wire/tagged-values.js';
import { isTag, type Tag, unescapeTag, JsonReader } from './json-tree.js';
import { readTensor } from './json-tensor.js';

/**
 * The value of plain JSON, see {@link Tag}.
 *
 * @param name the name of the value in errors
 * @throws InvalidInputError naming the invalid part
 */
export function readJson(json: unknown, limits: WireLimits, name: string): unknown {
  return readNode(json, new JsonReader(limits, name), 0);
}

/** The largest number of digits: reading more takes long. */
const MOST_DIGITS = 1000;

function readNode(node: unknown, reading: JsonReader, depth: number): unknown {
  switch (typeof node) {
    case 'string':
      reading.countBytes(node.length);
      return node;
    case 'number':
    case 'boolean':
      return node;
    case 'object':
      return node === null ? null : readObject(node, reading, depth + 1);
    default:
      return reading.fail(`is ${typeName(node)}, which is no JSON`);
  }
}

function readObject(node: object, reading: JsonReader, depth: number): unknown {
  if (depth > reading.limits.depth) {
    reading.fail(`lies deeper than ${reading.limits.depth} levels`);
  }
  if (Array.isArray(node)) {
    reading.countNodes(node.length);
    return node.map((element, i) => reading.at(i, () => readNode(element, reading, depth)));
  }
  const parts = reading.partsOf(node);
  const names = Object.keys(parts);
  reading.countNodes(names.length);
  const mark = names.find(isTag);
  if (mark === undefined) {
    return Object.fromEntries(
      names.map((name) => reading.at(name, () => readPart(name, parts[name], reading, depth))),
    );
  }
  if (names.length > 1) {
    reading.fail(`has other names beside "${mark}"`);
  }
  return reading.at(mark, () => readTagged(mark, parts[mark], reading));
}

function readPart(
  name: string,
  part: unknown,
  reading: JsonReader,
  depth: number,
): readonly [string, unknown] {
  if (name === '__proto__') {
    reading.fail('has a name that no part may have');
  }
  reading.countBytes(name.length);
  return [unescapeTag(name), readNode(part, reading, depth)];
}

function readTagged(mark: Tag, content: unknown, reading: JsonReader): unknown {
  switch (mark) {
    case '$tensor':
      return readTensor(content, reading);
    case '$bigint':
      return typeof content === 'string' && content.length <= MOST_DIGITS && /^-?\d+$/.test(content)
        ? BigInt(content)
        : reading.fail(`is ${formatValue(content)}; give up to ${MOST_DIGITS} digits in a string`);
    default:
      return (
        numberOfWord(content) ??
        reading.fail(
          `is ${formatValue(content)}; allowed are "NaN", "Infinity", "-Infinity" and "-0"`,
        )
      );
  }
}

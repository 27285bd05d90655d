import { InvalidInputError } from '../../../index.js';
import type { JsonLimits } from '../../../encoding/json.js';

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
/** `[` and `{` differ only in this bit, as do `]` and `}`. */
const CURLY = 0x20;
const OPENING = 0x7b;
const CLOSING = 0x7d;

/**
 * Refuses large or deep nesting before parsing: a parser turns two bytes into about a hundred.
 *
 * @throws InvalidInputError
 */
export function checkNesting(
  json: string | Buffer,
  { depth, nodes }: Pick<JsonLimits, 'depth' | 'nodes'>,
): void {
  const bytes = typeof json === 'string' ? Buffer.from(json) : json;
  let open = 0;
  let count = 0;
  for (let i = 0; i < bytes.length; i++) {
    const byte = bytes[i]!;
    if (byte === QUOTE) {
      i = endOfText(bytes, i);
    } else if ((byte | CURLY) === OPENING) {
      open++;
      count++;
      if (open > depth) {
        throw new InvalidInputError(`The JSON lies deeper than ${depth} levels`);
      }
      if (count > nodes) {
        throw new InvalidInputError(
          `The JSON has more than ${nodes} lists and objects; give the data of a tensor as one flat ` +
            'list, or as binary data',
        );
      }
    } else if ((byte | CURLY) === CLOSING) {
      open--;
    }
  }
}

function endOfText(bytes: Buffer, start: number): number {
  for (let i = start + 1; i < bytes.length; i++) {
    const byte = bytes[i]!;
    if (byte === QUOTE) {
      return i;
    }
    i += byte === BACKSLASH ? 1 : 0;
  }
  return bytes.length;
}

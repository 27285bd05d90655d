import { InvalidInputError } from '../errors.js';
import type { JsonLimits } from '../json/read-context.js';

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const OPENING = new Set([0x5b, 0x7b]);
const CLOSING = new Set([0x5d, 0x7d]);

/**
 * Refuses JSON with too many or too deep lists and objects before it is parsed: a parser would make
 * a hundred bytes of each two.
 *
 * @throws InvalidInputError
 */
export function checkNesting(
  json: string | Buffer,
  { depth, nodes }: Pick<JsonLimits, 'depth' | 'nodes'>,
): void {
  const bytes = typeof json === 'string' ? Buffer.from(json) : json;
  let [inText, open, count] = [false, 0, 0];
  for (let i = 0; i < bytes.length; i++) {
    const byte = bytes[i]!;
    if (inText) {
      i += byte === BACKSLASH ? 1 : 0;
      inText = byte !== QUOTE;
    } else if (byte === QUOTE) {
      inText = true;
    } else if (OPENING.has(byte)) {
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
    } else if (CLOSING.has(byte)) {
      open--;
    }
  }
}

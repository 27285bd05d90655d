import { isUtf8 } from 'node:buffer';
import type { WireLimits } from './limits.js';
import { FrameError } from './prelude.js';

/**
 * Parses UTF-8 JSON, after checking the limits.
 *
 * @throws FrameError beyond the limits or for invalid JSON, without quoting it
 */
export function parseJson(bytes: Buffer, limits: Pick<WireLimits, 'depth' | 'nodes'>): unknown {
  checkParts(bytes, limits);
  if (!isUtf8(bytes)) {
    throw new FrameError('A part of the frame is no UTF-8');
  }
  try {
    return JSON.parse(bytes.toString()) as unknown;
  } catch {
    throw new FrameError('A part of the frame is no JSON');
  }
}

const QUOTE = 0x22;
const COMMA = 0x2c;
const BACKSLASH = 0x5c;
const [OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT] = [0x5b, 0x5d, 0x7b, 0x7d];

function checkParts(bytes: Uint8Array, limits: Pick<WireLimits, 'depth' | 'nodes'>): void {
  // Each level and part takes a byte, so a short text can't exceed the limits.
  if (bytes.length <= limits.depth && bytes.length <= limits.nodes) {
    return;
  }
  let depth = 0;
  let nodes = 1;
  for (let at = 0; at < bytes.length; at++) {
    switch (bytes[at]) {
      case QUOTE:
        at = endOfString(bytes, at + 1);
        break;
      case COMMA:
        nodes++;
        break;
      case OPEN_LIST:
      case OPEN_OBJECT: {
        const next = bytes[at + 1];
        nodes += next === CLOSE_LIST || next === CLOSE_OBJECT ? 0 : 1;
        depth++;
        break;
      }
      case CLOSE_LIST:
      case CLOSE_OBJECT:
        depth--;
        break;
    }
    if (depth > limits.depth || nodes > limits.nodes) {
      throw new FrameError(
        `A part of the frame is deeper than ${limits.depth} levels, or of more than ` +
          `${limits.nodes} parts`,
      );
    }
  }
}

function endOfString(bytes: Uint8Array, start: number): number {
  for (let from = start; ;) {
    const quote = bytes.indexOf(QUOTE, from);
    if (quote === -1) {
      return bytes.length;
    }
    let before = quote;
    while (before > from && bytes[before - 1] === BACKSLASH) {
      before--;
    }
    if ((quote - before) % 2 === 0) {
      return quote;
    }
    from = quote + 1;
  }
}

import { formatValue } from '../../../doors/text.js';
import { isPlainObject } from '../../../doors/values.js';
import type { Address } from '../transport.js';
import type { WireLimits } from './limits.js';
import { FrameError, PRELUDE } from './prelude.js';
import { isUtf8 } from 'node:buffer';

const MOST_RECEIVERS = 1024;

/** Encoded once per receiver: reuse the object for equal headers. */
export class SentHeader {
  private readonly encoded = new Map<Address | undefined, Uint8Array>();

  constructor(private readonly fields: object) {}

  /** No receiver means all nodes. */
  bytes(from: Address, to?: Address): Uint8Array {
    const known = this.encoded.get(to);
    if (known) {
      return known;
    }
    if (this.encoded.size >= MOST_RECEIVERS) {
      this.encoded.clear();
    }
    const bytes = headerBytes({ from, to, ...this.fields });
    this.encoded.set(to, bytes);
    return bytes;
  }
}

export function headerBytes(header: object): Uint8Array {
  return Buffer.from(JSON.stringify(header));
}

/** Headers to keep, and most bytes of one. */
const MOST_KNOWN = 256;
const MOST_BYTES = 512;

export class HeaderReader {
  private readonly known = new Map<string, Header>();

  constructor(private readonly limits: WireLimits) {}

  /** @throws FrameError beyond the limits, or for non-objects */
  read(frame: Buffer, length: number): Header {
    if (length > this.limits.headerBytes) {
      throw new FrameError(
        `A frame with a header of ${length} bytes; at most ${this.limits.headerBytes} are allowed`,
      );
    }
    if (length > MOST_BYTES) {
      return this.parse(frame, length);
    }
    // Different bytes are different text in latin1.
    const text = frame.toString('latin1', PRELUDE, PRELUDE + length);
    return this.known.get(text) ?? this.add(text, this.parse(frame, length));
  }

  private add(text: string, header: Header): Header {
    if (this.known.size >= MOST_KNOWN) {
      this.known.clear();
    }
    this.known.set(text, header);
    return header;
  }

  private parse(frame: Buffer, length: number): Header {
    const header = parseJson(frame.subarray(PRELUDE, PRELUDE + length), this.limits);
    if (!isPlainObject(header) || holdsProto(header)) {
      throw new FrameError('The header of a frame is no plain object');
    }
    return header as Header;
  }
}

function holdsProto(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) {
    return false;
  }
  return Object.hasOwn(value, '__proto__') || Object.values(value).some(holdsProto);
}

export type Header = Readonly<Record<string, unknown>>;

/** @throws FrameError */
export function recordOf(value: unknown, what: string): Header {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new FrameError(`${what} is ${formatValue(value)}, not an object`);
  }
  return value as Header;
}

/** @throws FrameError */
export function listIn(record: Header, name: string, most: number): readonly unknown[] {
  const value = record[name];
  return Array.isArray(value) && value.length <= most
    ? value
    : malformed(name, value, `a list of at most ${most}`);
}

/** @throws FrameError */
export function wholeIn(record: Header, name: string, most = Number.MAX_SAFE_INTEGER): number {
  const value = record[name];
  return Number.isInteger(value) && (value as number) >= 0 && (value as number) <= most
    ? (value as number)
    : malformed(name, value, `a whole number ${upTo(most)}`);
}

/** @throws FrameError */
export function numberIn(record: Header, name: string, most = Number.MAX_SAFE_INTEGER): number {
  const value = record[name];
  return typeof value === 'number' && value >= 0 && value <= most
    ? value
    : malformed(name, value, `a number ${upTo(most)}`);
}

/** @throws FrameError */
export function flagIn(record: Header, name: string): boolean {
  const value = record[name];
  return typeof value === 'boolean' ? value : malformed(name, value, 'true or false');
}

/** @throws FrameError */
export function stringIn(record: Header, name: string, pattern: RegExp): string {
  const value = record[name];
  return typeof value === 'string' && pattern.test(value)
    ? value
    : malformed(name, value, `a string that matches ${String(pattern)}`);
}

/** @throws FrameError */
export function optionalStringIn(record: Header, name: string): string | undefined {
  const value = record[name];
  return value === undefined || typeof value === 'string'
    ? value
    : malformed(name, value, 'a string');
}

/** @throws FrameError */
export function optionalStringsIn(record: Header, name: string): readonly string[] | undefined {
  const value = record[name];
  return value === undefined ||
    (Array.isArray(value) && value.every((each) => typeof each === 'string'))
    ? value
    : malformed(name, value, 'a list of strings');
}

/** @throws FrameError */
export function oneOfIn<Value extends string>(
  record: Header,
  name: string,
  allowed: readonly Value[],
): Value {
  const value = record[name];
  return (
    allowed.find((each) => each === value) ??
    malformed(name, value, allowed.map((each) => `"${each}"`).join(' or '))
  );
}

function upTo(most: number): string {
  return most < Number.MAX_SAFE_INTEGER ? `from 0 to ${most}` : 'of 0 or more';
}

function malformed(name: string, value: unknown, allowed: string): never {
  throw new FrameError(`Field "${name}" is ${formatValue(value)}; allowed is ${allowed}`);
}

/**
 * Checks the limits before parsing.
 *
 * @throws FrameError, which never quotes the JSON
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
  // Each level and part takes a byte, so short texts can't exceed the limits.
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

import { isUtf8 } from 'node:buffer';
import { isPlainObject } from '../../batch/container.js';
import {
  blockAt,
  blockSection,
  lengthOf,
  type Place,
  placesOf,
  textSection,
  writeSection,
  writeSections,
} from './blocks.js';
import type { WireLimits } from './limits.js';
import {
  Flag,
  FrameError,
  headLength,
  Kind,
  packetLength,
  padded,
  PRELUDE,
  reading,
  TRAILER,
  FrameTooLargeError,
  writePrelude,
} from './prelude.js';
import { isSigned } from './signature.js';
import { decodeValue, type EncodedValue } from './values.js';

/** The content of a frame to send. */
export interface FrameToSend {
  readonly kind: Kind;
  /** Plain JSON. */
  readonly header: object;
  readonly value?: EncodedValue | undefined;
}

/** The bytes that a frame leaves free at its end: none, or the size of a signature. */
export type Spare = 0 | typeof TRAILER;

/** The content of a received frame. */
export interface Frame {
  readonly kind: Kind;
  readonly header: Readonly<Record<string, unknown>>;
  /**
   * The value; undefined if there is none. It is decoded only here, so a frame that is refused by
   * its header costs little. Tensors and typed arrays are views of the frame where their addresses
   * are aligned.
   *
   * @throws FrameError
   */
  readonly value: () => unknown;
}

/**
 * The bytes of a frame: the prelude; the header as JSON; a table with u8 type, u8 rank, u16 0, u32
 * bytes and a u32 for each axis of every block; the blocks, of which the first is the tree of the
 * value as JSON. A frame without a value has no blocks. JSON is UTF-8, numbers are little-endian,
 * and header, table and blocks are padded to 8 bytes each.
 *
 * `spare` bytes stay free at the end, for a signature.
 *
 * @throws InvalidInputError when the memory of a tensor was transferred after its value was encoded
 */
export function encodeFrame({ kind, header, value }: FrameToSend, spare: Spare = 0): Uint8Array {
  const head = textSection(JSON.stringify(header));
  const sections = value ? [textSection(value.text), ...value.blocks.map(blockSection)] : [];
  const body = lengthOf(sections) + spare;
  if (head.length >= 2 ** 32 || body >= 2 ** 32 || sections.length >= 2 ** 16) {
    throw new FrameError(
      `A frame of ${body} bytes in ${sections.length} blocks is more than one can be`,
    );
  }
  const start = PRELUDE + padded(head.length);
  // Uninitialised memory is safe: every byte is written here, the spare ones by the signature.
  const frame = Buffer.allocUnsafe(start + body);
  writePrelude(frame, {
    kind,
    flags: spare > 0 ? Flag.signed : 0,
    blocks: sections.length,
    head: head.length,
    body,
  });
  writeSection(frame, PRELUDE, head);
  writeSections(frame, start, sections);
  // A Uint8Array: slices of a Buffer would not copy.
  return new Uint8Array(frame.buffer, frame.byteOffset, frame.byteLength);
}

/**
 * Decodes a frame. Checks everything about its blocks that is known without reading them.
 *
 * @throws FrameError
 */
export function decodeFrame(bytes: Uint8Array, limits: WireLimits): Frame {
  return reading(() => {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const length = packetLength(bytes);
    if (length > limits.bytes) {
      throw new FrameTooLargeError(
        `A frame of ${length} bytes; at most ${limits.bytes} are allowed`,
        bytes,
      );
    }
    if (length !== bytes.byteLength) {
      throw new FrameError(`A frame of ${length} bytes came in ${bytes.byteLength}`);
    }
    const { kind, header } = headOf(bytes, limits);
    const start = PRELUDE + padded(headLength(bytes));
    const end = length - (isSigned(bytes) ? TRAILER : 0);
    const [tree, ...blocks] = placesOf(view, view.getUint16(6, true), start, end, limits);
    return {
      kind,
      header,
      value: () => tree && reading(() => valueIn(bytes, tree, blocks, limits)),
    };
  });
}

/**
 * The kind and header of a frame, from its first bytes.
 *
 * @throws FrameError
 */
export function headOf(beginning: Uint8Array, limits: WireLimits): Pick<Frame, 'kind' | 'header'> {
  const [kind, flags] = [beginning[4]!, beginning[5]!];
  if (!isKind(kind) || (flags & ~Flag.signed) !== 0) {
    throw new FrameError(
      `A frame of the kind ${kind} with the flags ${flags}, which are not known here`,
    );
  }
  const head = headLength(beginning);
  if (head > limits.headerBytes) {
    throw new FrameError(
      `A frame with a header of ${head} bytes; at most ${limits.headerBytes} are allowed`,
    );
  }
  return { kind, header: headerOf(beginning.subarray(PRELUDE, PRELUDE + head), limits) };
}

const kinds: ReadonlySet<number> = new Set(Object.values(Kind));

function isKind(kind: number): kind is Kind {
  return kinds.has(kind);
}

function headerOf(text: Uint8Array, limits: WireLimits): Readonly<Record<string, unknown>> {
  const header = parseJson(text, limits);
  if (!isPlainObject(header) || holdsProto(header)) {
    throw new FrameError('The header of a frame is no plain object');
  }
  return header as Readonly<Record<string, unknown>>;
}

function holdsProto(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) {
    return false;
  }
  return Object.hasOwn(value, '__proto__') || Object.values(value).some(holdsProto);
}

function valueIn(
  bytes: Uint8Array,
  tree: Place,
  places: readonly Place[],
  limits: WireLimits,
): unknown {
  const text = bytes.subarray(tree.at, tree.at + tree.length);
  const blocks = places.map((place) => blockAt(bytes, place));
  return decodeValue(parseJson(text, limits), blocks, limits);
}

/**
 * Parses UTF-8 JSON. Depth and number of parts are checked before anything is created.
 *
 * @throws FrameError beyond the limits or for invalid JSON; the message does not quote the text
 */
function parseJson(bytes: Uint8Array, limits: Pick<WireLimits, 'depth' | 'nodes'>): unknown {
  checkParts(bytes, limits);
  if (!isUtf8(bytes)) {
    throw new FrameError('A part of the frame is no UTF-8');
  }
  const text = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString();
  try {
    return JSON.parse(text) as unknown;
  } catch {
    throw new FrameError('A part of the frame is no JSON');
  }
}

const QUOTE = 0x22;
const COMMA = 0x2c;
const BACKSLASH = 0x5c;
const [OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT] = [0x5b, 0x5d, 0x7b, 0x7d];

function checkParts(bytes: Uint8Array, limits: Pick<WireLimits, 'depth' | 'nodes'>): void {
  // Each level takes an opening byte, and each part at least one: most texts are too short to
  // exceed the limits.
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

/** The index of the closing quote of the string that begins at `start`. */
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

import {
  blockAt,
  blockSection,
  lengthOf,
  type Place,
  placesOf,
  textSection,
  pad,
  type Section,
  writeSections,
} from './blocks.js';
import { headerBytes, HeaderReader } from './header.js';
import { parseJson } from './json-text.js';
import type { WireLimits } from './limits.js';
import type { Header } from './record-reader.js';
import {
  callIn,
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
  /** The number of the call that it belongs to. */
  readonly call?: number | undefined;
  /** The milliseconds that a request has. */
  readonly timeout?: number | undefined;
  /** Plain JSON. */
  readonly header: object;
  readonly value?: EncodedValue | undefined;
}

/** The bytes that a frame leaves free at its end: none, or the size of a signature. */
export type Spare = 0 | typeof TRAILER;

/** The content of a received frame. */
export interface Frame {
  readonly kind: Kind;
  readonly call: number;
  readonly timeout: number;
  readonly header: Header;
  /**
   * The value; undefined if there is none. It is decoded only here, so a frame that is refused by
   * its header costs little. Tensors and typed arrays are views of the frame where their addresses
   * are aligned.
   *
   * @throws FrameError
   */
  readonly value: () => unknown;
}

/** The first content of a frame, in its prelude and header. */
export type Head = Pick<Frame, 'kind' | 'call' | 'timeout' | 'header'>;

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
export function encodeFrame(frame: FrameToSend, spare: Spare = 0): Uint8Array {
  const bytes = frameOf(frame, headerBytes(frame.header), spare, (length) =>
    Buffer.allocUnsafe(length),
  );
  // A Uint8Array: slices of a Buffer would not copy.
  return new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/**
 * As {@link encodeFrame}, of a header that is encoded.
 *
 * @param allocate returns memory that need not be initialised: every byte is written here, the
 *   spare ones by the signature
 */
export function frameOf(
  { kind, call = 0, timeout = Infinity, value }: Omit<FrameToSend, 'header'>,
  header: Uint8Array,
  spare: Spare,
  allocate: (length: number) => Buffer,
): Uint8Array {
  const sections = value ? sectionsOf(value) : [];
  const body = lengthOf(sections) + spare;
  const head = header.byteLength;
  if (head >= 2 ** 32 || body >= 2 ** 32 || sections.length >= 2 ** 16) {
    throw new FrameError(
      `A frame of ${body} bytes in ${sections.length} blocks is more than one can be`,
    );
  }
  const start = PRELUDE + padded(head);
  const frame = allocate(start + body);
  const flags = spare > 0 ? Flag.signed : 0;
  writePrelude(frame, { kind, flags, blocks: sections.length, head, body, call, timeout });
  frame.set(header, PRELUDE);
  pad(frame, PRELUDE + head);
  writeSections(frame, start, sections);
  return frame;
}

function sectionsOf({ text, blocks }: EncodedValue): Section[] {
  const sections = [textSection(text)];
  for (const block of blocks) {
    sections.push(blockSection(block));
  }
  return sections;
}

/**
 * Decodes a frame. Checks everything about its blocks that is known without reading them.
 *
 * @throws FrameError
 */
export function decodeFrame(
  bytes: Uint8Array,
  limits: WireLimits,
  headers: HeaderReader = new HeaderReader(limits),
): Frame {
  return reading(() => {
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
    const frame = bufferOf(bytes);
    const { kind, call, timeout, header } = headOf(frame, headers);
    const start = PRELUDE + padded(headLength(frame));
    const end = length - (isSigned(frame) ? TRAILER : 0);
    const places = placesOf(frame, frame.readUInt16LE(6), start, end, limits);
    const value = (): unknown =>
      places.length === 0 ? undefined : reading(() => valueIn(frame, places, limits));
    return { kind, call, timeout, header, value };
  });
}

/**
 * Reads the prelude and the header of a frame from its first bytes.
 *
 * @throws FrameError
 */
export function headOf(beginning: Uint8Array, headers: HeaderReader): Head {
  const kind = beginning[4]!;
  const flags = beginning[5]!;
  if (!isKind(kind) || (flags & ~Flag.signed) !== 0) {
    throw new FrameError(
      `A frame of the kind ${kind} with the flags ${flags}, which are not known here`,
    );
  }
  const frame = bufferOf(beginning);
  const header = headers.read(frame, headLength(frame));
  const { call, timeout } = callIn(frame);
  return { kind, call, timeout, header };
}

const kinds: ReadonlySet<number> = new Set(Object.values(Kind));

function isKind(kind: number): kind is Kind {
  return kinds.has(kind);
}

/** The same memory as a Buffer. */
function bufferOf(bytes: Uint8Array): Buffer {
  return Buffer.isBuffer(bytes)
    ? bytes
    : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

function valueIn(frame: Buffer, places: readonly Place[], limits: WireLimits): unknown {
  const [tree, ...rest] = places;
  const { at, length } = tree!;
  const blocks = rest.map((place) => blockAt(frame, place));
  return decodeValue(parseJson(frame.subarray(at, at + length), limits), blocks, limits);
}

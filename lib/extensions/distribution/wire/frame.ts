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

/** A frame to send. */
export interface FrameToSend {
  readonly kind: Kind;
  readonly call?: number | undefined;
  /** A request's milliseconds left. */
  readonly timeout?: number | undefined;
  /** Plain JSON. */
  readonly header: object;
  readonly value?: EncodedValue | undefined;
}

/** Bytes left free at a frame's end for a signature. */
export type Spare = 0 | typeof TRAILER;

/** A received frame. */
export interface Frame {
  readonly kind: Kind;
  readonly call: number;
  readonly timeout: number;
  readonly header: Header;
  /**
   * Decodes the value, if any. Nothing is decoded before, so refusing a frame by its header is
   * cheap. Tensors and typed arrays are views of the frame if aligned.
   *
   * @throws FrameError
   */
  readonly value: () => unknown;
}

/** The content of a frame's prelude and header. */
export type Head = Pick<Frame, 'kind' | 'call' | 'timeout' | 'header'>;

/**
 * Encodes a frame. Its parts are:
 *
 * - the prelude
 * - the header as JSON
 * - a table with an entry per block: u8 type, u8 rank, u16 0, u32 bytes, and a u32 per axis
 * - the blocks, if there is a value; the first is its tree as JSON
 *
 * JSON is UTF-8, numbers are little-endian. The header, the table and each block are padded to 8
 * bytes. `spare` bytes stay free at the end for a signature.
 *
 * @throws InvalidInputError if a tensor's memory was transferred after its value was encoded
 */
export function encodeFrame(frame: FrameToSend, spare: Spare = 0): Uint8Array {
  const bytes = frameOf(frame, headerBytes(frame.header), spare, (length) =>
    Buffer.allocUnsafe(length),
  );
  // Not a Buffer, whose slices don't copy.
  return new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/**
 * Like {@link encodeFrame}, with an encoded header.
 *
 * @param allocate may return uninitialised memory: we write every byte, and the signature the
 *   spare ones
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
 * Decodes a frame, and checks its blocks as far as possible without reading them.
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
 * Reads a frame's prelude and header from its first bytes.
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

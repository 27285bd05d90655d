import { type Header, headerBytes, HeaderReader, parseJson } from './header.js';
import type { WireLimits } from './limits.js';
import {
  callIn,
  Flag,
  FrameError,
  FrameTooLargeError,
  headLength,
  Kind,
  packetLength,
  padded,
  PRELUDE,
  reading,
  TRAILER,
  writePrelude,
} from './prelude.js';
import { isSigned } from './signature.js';
import { decodeValue, type EncodedValue } from './values.js';
import { InvalidInputError } from '../../../index.js';
import {
  BIG_ENDIAN,
  type Block,
  countOf,
  type Element,
  elementByCode,
  elementByType,
  swapOnBigEndian,
} from '../../../encoding/element-types.js';

export interface FrameToSend {
  readonly kind: Kind;
  readonly call?: number | undefined;
  /** Milliseconds left. */
  readonly timeout?: number | undefined;
  /** Plain JSON. */
  readonly header: object;
  readonly value?: EncodedValue | undefined;
}

/** Bytes left free for a signature. */
export type Spare = 0 | typeof TRAILER;

export interface Frame {
  readonly kind: Kind;
  readonly call: number;
  readonly timeout: number;
  readonly header: Header;
  /**
   * Decodes the value, if any, only now, so refusals are cheap. Aligned arrays are views of the
   * frame.
   *
   * @throws FrameError
   */
  readonly value: () => unknown;
}

export type Head = Pick<Frame, 'kind' | 'call' | 'timeout' | 'header'>;

/**
 * Encodes a frame:
 *
 * - the prelude
 * - the header as JSON
 * - a table with an entry per block: u8 type, u8 rank, u16 0, u32 bytes, and a u32 per axis
 * - the value's blocks; the first is its tree as JSON
 *
 * JSON is UTF-8, numbers are little-endian. The header, the table and each block are padded to 8
 * bytes.
 *
 * @throws InvalidInputError if a tensor's memory was transferred meanwhile
 */
export function encodeFrame(frame: FrameToSend, spare: Spare = 0): Uint8Array {
  const bytes = frameOf(frame, headerBytes(frame.header), spare, (length) =>
    Buffer.allocUnsafe(length),
  );
  // A Buffer's slices don't copy.
  return new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/**
 * Like {@link encodeFrame}, with an encoded header.
 *
 * @param allocate may return uninitialised memory
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
      `A frame of ${body} bytes in ${sections.length} blocks exceeds the limit of 2 ** 32 bytes or 2 ** 16 blocks`,
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
 * Checks blocks without reading them.
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

/** @throws FrameError */
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

export interface Section {
  readonly code: number;
  readonly dims: readonly number[];
  /** Text, or elements of `size` bytes, read only when written. */
  readonly data: string | Uint8Array;
  readonly size: number;
  readonly length: number;
}

export interface Place {
  readonly element: Element;
  readonly dims: readonly number[];
  at: number;
  readonly length: number;
}

const JSON_CODE = elementByType.get('json')!.code;

function textSection(text: string): Section {
  const length = Buffer.byteLength(text);
  return { code: JSON_CODE, dims: [length], data: text, size: 1, length };
}

export function blockSection({ type, dims, data }: Block): Section {
  const { code, size } = elementByType.get(type)!;
  const { buffer, byteOffset, byteLength: length } = data;
  if (countOf(dims, length) * size !== length) {
    throw new InvalidInputError(
      `The memory of a tensor of the shape [${dims.join(', ')}] has been taken away; was it ` +
        'transferred?',
    );
  }
  return { code, dims, data: new Uint8Array(buffer, byteOffset, length), size, length };
}

export function lengthOf(sections: readonly Section[]): number {
  let sum = tableLength(sections);
  for (const { length } of sections) {
    sum += padded(length);
  }
  return sum;
}

export function writeSections(frame: Buffer, start: number, sections: readonly Section[]): void {
  let entry = start;
  let at = start + tableLength(sections);
  for (const section of sections) {
    entry = writeEntry(frame, entry, section);
    at = writeSection(frame, at, section);
  }
  pad(frame, entry);
}

function writeSection(frame: Buffer, at: number, { data, size, length }: Section): number {
  if (typeof data === 'string') {
    frame.write(data, at);
  } else {
    frame.set(data, at);
    if (BIG_ENDIAN) {
      swapOnBigEndian(frame.subarray(at, at + length), size);
    }
  }
  return pad(frame, at + length);
}

function writeEntry(frame: Buffer, at: number, { code, dims, length }: Section): number {
  frame[at] = code;
  frame[at + 1] = dims.length;
  frame.writeUInt16LE(0, at + 2);
  frame.writeUInt32LE(length, at + 4);
  let end = at + entryLength(0);
  for (const dim of dims) {
    end = frame.writeUInt32LE(dim, end);
  }
  return end;
}

export function pad(frame: Buffer, end: number): number {
  const next = padded(end);
  for (let at = end; at < next; at++) {
    frame[at] = 0;
  }
  return next;
}

/**
 * Only the first block is text; the blocks must end at `end`.
 *
 * @throws FrameError
 */
export function placesOf(
  frame: Buffer,
  count: number,
  start: number,
  end: number,
  limits: WireLimits,
): Place[] {
  if (count > limits.tensors + 1) {
    throw new FrameError(`A frame with ${count} blocks; at most ${limits.tensors + 1} are allowed`);
  }
  const places: Place[] = [];
  let entry = start;
  for (let i = 0; i < count; i++) {
    const rank = entry + entryLength(0) <= end ? frame[entry + 1]! : Infinity;
    if (rank > limits.rank || entry + entryLength(rank) > end) {
      throw new FrameError(
        `A frame whose table does not end in it, or a block with more than ${limits.rank} axes`,
      );
    }
    places.push(entryAt(frame, entry, rank, i === 0));
    entry += entryLength(rank);
  }
  let at = padded(entry);
  for (const place of places) {
    place.at = at;
    at += padded(place.length);
  }
  if (at !== end) {
    throw new FrameError(`A frame whose blocks end at ${at}, and its body at ${end}`);
  }
  return places;
}

/** A view if aligned, otherwise a copy. */
export function blockAt(
  { buffer, byteOffset }: Uint8Array,
  { element, dims, at, length }: Place,
): Block {
  const { type, size, storage } = element;
  const start = byteOffset + at;
  if (start % size === 0 && !BIG_ENDIAN) {
    return { type, dims, data: new storage(buffer, start, length / size) };
  }
  const copy = new Uint8Array(buffer, start, length).slice();
  swapOnBigEndian(copy, size);
  return { type, dims, data: new storage(copy.buffer, 0, length / size) };
}

/** Leaves `at` to the caller. */
function entryAt(frame: Buffer, at: number, rank: number, isFirst: boolean): Place {
  const code = frame[at]!;
  const element = elementByCode.get(code);
  if (!element || (element.type === 'json') !== isFirst || frame.readUInt16LE(at + 2) !== 0) {
    throw new FrameError(
      `A frame with a block of the type ${code}, which is not known here, or not there`,
    );
  }
  const length = frame.readUInt32LE(at + 4);
  const dims: number[] = [];
  for (let axis = 0; axis < rank; axis++) {
    dims.push(frame.readUInt32LE(at + 8 + 4 * axis));
  }
  if (countOf(dims, length) * element.size !== length) {
    throw new FrameError(
      `A frame with a block of ${length} bytes, which are not those of its shape ` +
        `[${dims.join(', ')}]`,
    );
  }
  return { element, dims, at: 0, length };
}

function entryLength(rank: number): number {
  return 8 + 4 * rank;
}

function tableLength(sections: readonly Section[]): number {
  let sum = 0;
  for (const { dims } of sections) {
    sum += entryLength(dims.length);
  }
  return padded(sum);
}

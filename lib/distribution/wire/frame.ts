import { isPlainObject } from '../../batch/container.js';
import { InvalidInputError } from '../../errors.js';
import { BIG_ENDIAN, swapOnBigEndian } from './byte-order.js';
import { type Block, countOf, type Element, elementByCode, elementByType } from './element-types.js';
import type { WireLimits } from './limits.js';
import { parseJson } from './parse-json.js';
import { Flag, FrameError, Kind, packetLength, padded, PRELUDE, reading, TRAILER, VERSION } from './prelude.js';
import { decodeValue, type EncodedValue } from './values.js';

/** What is to be said. */
export interface FrameToSend {
  readonly kind: Kind;
  /** Plain JSON. */
  readonly header: object;
  readonly value?: EncodedValue | undefined;
}

/** What was said. */
export interface Frame {
  readonly kind: Kind;
  readonly header: Readonly<Record<string, unknown>>;
  /**
   * The value; undefined if there is none. It is read only now: who refuses the frame by its header pays nothing for it. Tensors and
   * typed arrays are views of the frame wherever these begin at an address that allows it.
   *
   * @throws FrameError
   */
  readonly value: () => unknown;
}

/**
 * The bytes of a frame: the prelude; the header as JSON; a table with u8 type, u8 rank, u16 0, u32 bytes and a u32 for each axis of
 * every block; the blocks, of which the first is the tree of the value as JSON. A frame without a value has no blocks. JSON is
 * UTF-8, numbers are little-endian, and header, table and blocks are padded to 8 bytes each.
 *
 * `spare` bytes stay free at the end: none, or as many as a signature takes.
 */
export function encodeFrame({ kind, header, value }: FrameToSend, spare: number = 0): Uint8Array {
  const head = textOf(header);
  const sections = value ? [textOf(value.tree), ...value.blocks.map(sectionOf)] : [];
  const table = padded(sections.reduce((sum, { dims }) => sum + entryLength(dims.length), 0));
  const bodyLength = sections.reduce((sum, { length }) => sum + padded(length), table) + spare;
  if (head.length >= 2 ** 32 || bodyLength >= 2 ** 32 || sections.length >= 2 ** 16) {
    throw new FrameError(`A frame of ${bodyLength} bytes in ${sections.length} blocks is more than one can be`);
  }

  const frame = Buffer.from(new ArrayBuffer(PRELUDE + padded(head.length) + bodyLength));
  frame.set([0, 0x53, 0x56, VERSION, kind, spare > 0 ? Flag.signed : 0]);
  frame.writeUInt16LE(sections.length, 6);
  frame.writeUInt32LE(head.length, 8);
  frame.writeUInt32LE(bodyLength, 12);
  head.write(frame, PRELUDE);

  let entry = PRELUDE + padded(head.length);
  let at = entry + table;
  for (const { code, dims, length, write } of sections) {
    frame.writeUInt8(code, entry);
    frame.writeUInt8(dims.length, entry + 1);
    frame.writeUInt32LE(length, entry + 4);
    dims.forEach((dim, axis) => frame.writeUInt32LE(dim, entry + 8 + 4 * axis));
    write(frame, at);
    entry += entryLength(dims.length);
    at += padded(length);
  }
  return new Uint8Array(frame.buffer);
}

/**
 * The frame that these bytes are, and nothing but it. All that can be known of its blocks without reading them is checked.
 *
 * @throws FrameError
 */
export function decodeFrame(bytes: Uint8Array, limits: WireLimits): Frame {
  return reading(() => {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const length = packetLength(bytes);
    if (length > limits.bytes) {
      throw new FrameError(`A frame of ${length} bytes; at most ${limits.bytes} are allowed`);
    }
    if (length !== bytes.byteLength) {
      throw new FrameError(`A frame of ${length} bytes came in ${bytes.byteLength}`);
    }
    const kind = view.getUint8(4);
    const flags = view.getUint8(5);
    const headLength = view.getUint32(8, true);
    if (!isKind(kind) || (flags & ~Flag.signed) !== 0) {
      throw new FrameError(`A frame of the kind ${kind} with the flags ${flags}, which are not known here`);
    }
    if (headLength > limits.headerBytes) {
      throw new FrameError(`A frame with a header of ${headLength} bytes; at most ${limits.headerBytes} are allowed`);
    }
    const header = headerOf(bytes.subarray(PRELUDE, PRELUDE + headLength), limits);
    const end = length - (flags & Flag.signed ? TRAILER : 0);
    const [tree, ...blocks] = placesOf(view, PRELUDE + padded(headLength), end, limits);
    return { kind, header, value: () => tree && reading(() => valueIn(bytes, tree, blocks, limits)) };
  });
}

const kinds: ReadonlySet<number> = new Set(Object.values(Kind));

function isKind(kind: number): kind is Kind {
  return kinds.has(kind);
}

/** A part of a frame that is still to be written. */
interface Section {
  readonly code: number;
  readonly dims: readonly number[];
  readonly length: number;
  readonly write: (frame: Buffer, at: number) => void;
}

function textOf(json: unknown): Section {
  const text = JSON.stringify(json);
  const length = Buffer.byteLength(text);
  return { code: JSON_CODE, dims: [length], length, write: (frame, at) => frame.write(text, at) };
}

const JSON_CODE = elementByType.get('json')!.code;

function sectionOf({ type, dims, data }: Block): Section {
  const { code, size } = elementByType.get(type)!;
  const { buffer, byteOffset, byteLength: length } = data;
  if (countOf(dims, length) * size !== length) {
    throw new InvalidInputError(
      `The memory of a tensor of the shape [${dims.join(', ')}] has been taken away; was it transferred?`,
    );
  }
  const write = (frame: Buffer, at: number): void => {
    frame.set(new Uint8Array(buffer, byteOffset, length), at);
    swapOnBigEndian(frame.subarray(at, at + length), size);
  };
  return { code, dims, length, write };
}

function entryLength(rank: number): number {
  return 8 + 4 * rank;
}

/** Where a block lies in a frame. */
interface Place {
  readonly element: Element;
  readonly dims: readonly number[];
  readonly at: number;
  readonly length: number;
}

function headerOf(text: Uint8Array, limits: WireLimits): Readonly<Record<string, unknown>> {
  const header = parseJson(text, limits);
  if (!isPlainObject(header) || Array.isArray(header) || holdsProto(header)) {
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

/** The places of the blocks that the table at `start` tells of; they fill the body to its end. */
function placesOf(view: DataView, start: number, end: number, limits: WireLimits): Place[] {
  const count = view.getUint16(6, true);
  if (count > limits.tensors + 1) {
    throw new FrameError(`A frame with ${count} blocks; at most ${limits.tensors + 1} are allowed`);
  }
  const entries: Omit<Place, 'at'>[] = [];
  let at = start;
  for (let i = 0; i < count; i++) {
    const rank = at + 8 <= end ? view.getUint8(at + 1) : Infinity;
    if (rank > limits.rank || at + entryLength(rank) > end) {
      throw new FrameError(`A frame whose table has no end, or a block with more axes than ${limits.rank}`);
    }
    const dims = Array.from({ length: rank }, (_, axis) => view.getUint32(at + 8 + 4 * axis, true));
    const element = elementByCode.get(view.getUint8(at));
    const length = view.getUint32(at + 4, true);
    if (!element || (element.type === 'json') !== (i === 0) || view.getUint16(at + 2, true) !== 0) {
      throw new FrameError(`A frame with a block of the type ${view.getUint8(at)}, which is not known here`);
    }
    if (countOf(dims, length) * element.size !== length) {
      throw new FrameError(`A frame with a block of ${length} bytes, which are not those of its shape [${dims.join(', ')}]`);
    }
    entries.push({ element, dims, length });
    at += entryLength(rank);
  }
  at = padded(at);
  const places = entries.map((entry) => {
    const place = { ...entry, at };
    at += padded(entry.length);
    return place;
  });
  if (at !== end) {
    throw new FrameError(`A frame whose blocks end at ${at}, and its body at ${end}`);
  }
  return places;
}

function valueIn(bytes: Uint8Array, tree: Place, blocks: readonly Place[], limits: WireLimits): unknown {
  const text = bytes.subarray(tree.at, tree.at + tree.length);
  return decodeValue(
    parseJson(text, limits),
    blocks.map((place) => blockAt(bytes, place)),
    limits,
  );
}

function blockAt({ buffer, byteOffset }: Uint8Array, { element, dims, at, length }: Place): Block {
  const { type, size, storage } = element;
  const start = byteOffset + at;
  if (start % size === 0 && !BIG_ENDIAN) {
    return { type, dims, data: new storage(buffer, start, length / size) };
  }
  const copy = new Uint8Array(buffer, start, length).slice();
  swapOnBigEndian(copy, size);
  return { type, dims, data: new storage(copy.buffer, 0, length / size) };
}

import { InvalidInputError } from '../../../index.js';
import {
  BIG_ENDIAN,
  swapOnBigEndian,
  type Block,
  countOf,
  type Element,
  elementByCode,
  elementByType,
} from '../../../internal.js';
import type { WireLimits } from './limits.js';
import { FrameError, padded } from './prelude.js';

/** A block to write. */
export interface Section {
  readonly code: number;
  readonly dims: readonly number[];
  /** Text, or the memory of elements of `size` bytes, read only when written. */
  readonly data: string | Uint8Array;
  readonly size: number;
  readonly length: number;
}

/** A block's position in a frame. */
export interface Place {
  readonly element: Element;
  readonly dims: readonly number[];
  at: number;
  readonly length: number;
}

const JSON_CODE = elementByType.get('json')!.code;

/** A section of JSON text. */
export function textSection(text: string): Section {
  const length = Buffer.byteLength(text);
  return { code: JSON_CODE, dims: [length], data: text, size: 1, length };
}

/** A section of elements. */
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

/** Size in bytes of the sections and their table. */
export function lengthOf(sections: readonly Section[]): number {
  let sum = tableLength(sections);
  for (const { length } of sections) {
    sum += padded(length);
  }
  return sum;
}

/** Writes the table and the sections. */
export function writeSections(frame: Buffer, start: number, sections: readonly Section[]): void {
  let entry = start;
  let at = start + tableLength(sections);
  for (const section of sections) {
    entry = writeEntry(frame, entry, section);
    at = writeSection(frame, at, section);
  }
  pad(frame, entry);
}

/** Returns the next section's offset. */
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

/** Writes zeros up to the next part's start, and returns it. */
export function pad(frame: Buffer, end: number): number {
  const next = padded(end);
  for (let at = end; at < next; at++) {
    frame[at] = 0;
  }
  return next;
}

/**
 * Reads the table at `start`. Only the first block is text, and the blocks must fill the frame up
 * to `end`.
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

/** Reads a block: a view if its address is aligned, otherwise a copy. */
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

/** Leaves `at` to the caller: it follows from the blocks before. */
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

/** Size of a table entry: u8 type, u8 rank, u16 0, u32 bytes, and a u32 per axis. */
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

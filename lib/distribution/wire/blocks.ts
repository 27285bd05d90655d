import { InvalidInputError } from '../../errors.js';
import {
  BIG_ENDIAN,
  swapOnBigEndian,
  type Block,
  countOf,
  type Element,
  elementByCode,
  elementByType,
} from '../../json/element-types.js';
import type { WireLimits } from './limits.js';
import { FrameError, padded } from './prelude.js';

/** A block to be written: its size in bytes, and the function that writes it. */
export interface Section {
  readonly code: number;
  readonly dims: readonly number[];
  readonly length: number;
  readonly write: (frame: Buffer, at: number) => void;
}

/** The position of a block in a frame. */
export interface Place {
  readonly element: Element;
  readonly dims: readonly number[];
  readonly at: number;
  readonly length: number;
}

const JSON_CODE = elementByType.get('json')!.code;

/** The section of JSON text. */
export function textSection(text: string): Section {
  const length = Buffer.byteLength(text);
  return { code: JSON_CODE, dims: [length], length, write: (frame, at) => frame.write(text, at) };
}

/** A section of elements. They are read only when the section is written. */
export function blockSection({ type, dims, data }: Block): Section {
  const { code, size } = elementByType.get(type)!;
  const { buffer, byteOffset, byteLength: length } = data;
  if (countOf(dims, length) * size !== length) {
    throw new InvalidInputError(
      `The memory of a tensor of the shape [${dims.join(', ')}] has been taken away; was it ` +
        'transferred?',
    );
  }
  const write = (frame: Buffer, at: number): void => {
    frame.set(new Uint8Array(buffer, byteOffset, length), at);
    swapOnBigEndian(frame.subarray(at, at + length), size);
  };
  return { code, dims, length, write };
}

/** The size in bytes of these sections and of their table. */
export function lengthOf(sections: readonly Section[]): number {
  return sections.reduce((sum, { length }) => sum + padded(length), tableLength(sections));
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

/** Writes a section and returns the offset of the next one. */
export function writeSection(frame: Buffer, at: number, { length, write }: Section): number {
  write(frame, at);
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

/** Writes zeros from the end of a part to the start of the next. */
function pad(frame: Buffer, end: number): number {
  const next = padded(end);
  frame.fill(0, end, next);
  return next;
}

/**
 * The positions of the `count` blocks in the table at `start`. Only the first block is text, and
 * they fill the frame up to `end`.
 *
 * @throws FrameError
 */
export function placesOf(
  view: DataView,
  count: number,
  start: number,
  end: number,
  limits: WireLimits,
): Place[] {
  if (count > limits.tensors + 1) {
    throw new FrameError(`A frame with ${count} blocks; at most ${limits.tensors + 1} are allowed`);
  }
  const entries: Omit<Place, 'at'>[] = [];
  let entry = start;
  for (let i = 0; i < count; i++) {
    const rank = entry + entryLength(0) <= end ? view.getUint8(entry + 1) : Infinity;
    if (rank > limits.rank || entry + entryLength(rank) > end) {
      throw new FrameError(
        `A frame whose table does not end in it, or a block with more than ${limits.rank} axes`,
      );
    }
    entries.push(entryAt(view, entry, rank, i === 0));
    entry += entryLength(rank);
  }
  let at = padded(entry);
  const places = entries.map(({ element, dims, length }) => {
    const place = { element, dims, at, length };
    at += padded(length);
    return place;
  });
  if (at !== end) {
    throw new FrameError(`A frame whose blocks end at ${at}, and its body at ${end}`);
  }
  return places;
}

/** The block at the position: a view of these bytes, if its address is aligned. */
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

function entryAt(view: DataView, at: number, rank: number, isFirst: boolean): Omit<Place, 'at'> {
  const code = view.getUint8(at);
  const element = elementByCode.get(code);
  if (!element || (element.type === 'json') !== isFirst || view.getUint16(at + 2, true) !== 0) {
    throw new FrameError(
      `A frame with a block of the type ${code}, which is not known here, or not there`,
    );
  }
  const length = view.getUint32(at + 4, true);
  const dims: number[] = [];
  for (let axis = 0; axis < rank; axis++) {
    dims.push(view.getUint32(at + 8 + 4 * axis, true));
  }
  if (countOf(dims, length) * element.size !== length) {
    throw new FrameError(
      `A frame with a block of ${length} bytes, which are not those of its shape ` +
        `[${dims.join(', ')}]`,
    );
  }
  return { element, dims, length };
}

/**
 * The size of an entry of the table: u8 type, u8 rank, u16 0, u32 bytes, and a u32 for each axis.
 */
function entryLength(rank: number): number {
  return 8 + 4 * rank;
}

function tableLength(sections: readonly Section[]): number {
  return padded(sections.reduce((sum, { dims }) => sum + entryLength(dims.length), 0));
}

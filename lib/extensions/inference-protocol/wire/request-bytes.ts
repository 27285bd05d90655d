import { elementSize, type LeafRows } from '../../../internal.js';
import { swapOnBigEndian } from '../../../encoding/element-types.js';
import { sizeOfStrings, writeStringElements } from './tensor-bytes.js';

/**
 * Key of `raw_input_contents`, field 7 with a length:
 * https://protobuf.dev/programming-guides/encoding/
 */
const RAW_CONTENTS = (7 << 3) | 2;

interface Content {
  readonly byteLength: number;
  write(room: Buffer): void;
}

/**
 * Copies rows only once.
 *
 * @param head the message without `raw_input_contents`, its last field
 * @param inputs in the head's order
 * @param allocate returns memory of that length
 */
export function requestBytes(
  head: Uint8Array,
  inputs: readonly LeafRows[],
  allocate: (length: number) => Buffer,
): Buffer {
  const contents = inputs.map(contentOf);
  const length = contents.reduce(
    (sum, { byteLength }) => sum + 1 + lengthOfVarint(byteLength) + byteLength,
    head.length,
  );
  const message = allocate(length);
  message.set(head);
  let at = head.length;
  for (const content of contents) {
    message[at] = RAW_CONTENTS;
    at = writeVarint(message, at + 1, content.byteLength);
    content.write(message.subarray(at, (at += content.byteLength)));
  }
  return message;
}

function contentOf(rows: LeafRows): Content {
  if (rows.type === 'string') {
    const strings = rows.gather().data as string[];
    return {
      byteLength: sizeOfStrings(strings),
      write: (room) => writeStringElements(strings, room),
    };
  }
  const size = elementSize(rows.type);
  return {
    byteLength: rows.dims.reduce((product, dim) => product * dim, size),
    write(room) {
      rows.write(room);
      swapOnBigEndian(room, size);
    },
  };
}

function lengthOfVarint(value: number): number {
  let length = 1;
  for (let rest = value; rest > 0x7f; rest = Math.floor(rest / 0x80)) {
    length++;
  }
  return length;
}

/** 7 bits per byte, lowest first. Returns the next index. */
function writeVarint(message: Buffer, start: number, value: number): number {
  let at = start;
  let rest = value;
  for (; rest > 0x7f; rest = Math.floor(rest / 0x80)) {
    message[at++] = (rest % 0x80) | 0x80;
  }
  message[at++] = rest;
  return at;
}

import { BIG_ENDIAN, swapOnBigEndian } from '../wire/byte-order.js';
import type { Block, Elements } from '../wire/element-types.js';
import { numberOfWord, wordOfNumber } from '../wire/number-words.js';
import type { Json } from '../wire/value-writer.js';
import { halfOfNumber, numberOfHalf } from './half.js';

/** The elements as little-endian bytes, in base64. */
export function base64Of({ data }: Pick<Block, 'data'>): string {
  const bytes = bytesOf(BIG_ENDIAN ? data.slice() : data);
  swapOnBigEndian(bytes, data.BYTES_PER_ELEMENT);
  return bytes.toString('base64');
}

/** The elements in a list: whole numbers that a number cannot hold are written in digits, and those that JSON does not know as words. */
export function listOf({ type, data }: Pick<Block, 'type' | 'data'>): readonly Json[] {
  if (isBig(data)) {
    return Array.from<bigint, Json>(data, (element) =>
      Number.isSafeInteger(Number(element)) ? Number(element) : element.toString(),
    );
  }
  if (type === 'bool') {
    return Array.from<number, Json>(data, (element) => element !== 0);
  }
  const numbers = type === 'float16' ? Array.from(bitsOf(data), numberOfHalf) : Array.from<number>(data);
  return numbers.map((number) => wordOfNumber(number) ?? number);
}

/** Fills the storage with what the text says; false when that is not just so many bytes. */
export function fillFromBase64({ data }: Pick<Block, 'data'>, text: string): boolean {
  const bytes = bytesOf(data);
  const isWhole = bytes.write(text, 'base64') === bytes.byteLength;
  swapOnBigEndian(bytes, data.BYTES_PER_ELEMENT);
  return isWhole;
}

/** Fills the storage with what is in a list of that length; the place of the first element that is none of the type, or -1. */
export function fillFromList({ type, data }: Pick<Block, 'type' | 'data'>, list: readonly unknown[]): number {
  if (isBig(data)) {
    return fill(data, list, bigIntIn);
  }
  switch (type) {
    case 'bool':
      return fill(data, list, (element) => (typeof element === 'boolean' ? Number(element) : undefined));
    case 'float16':
      return fill(bitsOf(data), list, halfIn);
    case 'float32':
    case 'float64':
      return fill(data, list, numberIn, 'nearest');
    default:
      return fill(data, list, (element) => (typeof element === 'number' ? element : undefined));
  }
}

/** What the storage would change is none of its type, unless the nearest will do. */
function fill<T>(
  data: { [i: number]: T },
  list: readonly unknown[],
  read: (element: unknown) => T | undefined,
  precision: 'exact' | 'nearest' = 'exact',
): number {
  return list.findIndex((element, i) => {
    const value = read(element);
    if (value === undefined) {
      return true;
    }
    data[i] = value;
    return precision === 'exact' && data[i] !== value;
  });
}

function numberIn(element: unknown): number | undefined {
  return typeof element === 'number' ? element : numberOfWord(element);
}

function halfIn(element: unknown): number | undefined {
  const number = numberIn(element);
  return number === undefined ? undefined : halfOfNumber(number);
}

/** A number that is not safe has lost digits on its way. */
function bigIntIn(element: unknown): bigint | undefined {
  return Number.isSafeInteger(element) || (typeof element === 'string' && /^-?\d{1,20}$/.test(element))
    ? BigInt(element as number | string)
    : undefined;
}

function isBig(data: Elements): data is BigInt64Array | BigUint64Array {
  return data instanceof BigInt64Array || data instanceof BigUint64Array;
}

function bytesOf({ buffer, byteOffset, byteLength }: Elements): Buffer {
  return Buffer.from(buffer, byteOffset, byteLength);
}

/** Floats of 16 bits as what every version of Node has an array for. */
function bitsOf({ buffer, byteOffset, length }: Elements): Uint16Array {
  return new Uint16Array(buffer, byteOffset, length);
}

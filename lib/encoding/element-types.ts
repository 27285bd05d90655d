import type { Tensor } from 'onnxruntime-common';
import { endianness } from 'node:os';
import { type Storage, storageClasses, type TypedData } from '../core/batch/tensor.js';

/** String tensors are part of the tree instead. */
export type ElementType = Exclude<Tensor.Type, 'string'> | 'uint8clamped' | 'json';

export type Elements = TypedData | Uint8ClampedArray;

export interface Element {
  readonly type: ElementType;
  readonly code: number;
  /** Bytes. */
  readonly size: number;
  readonly storage: new (buffer: ArrayBufferLike, offset: number, length: number) => Elements;
}

/**
 * Stable codes: ONNX's `TensorProto.DataType`, ours from 128.
 * https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
 */
const codes: Readonly<Record<ElementType, number>> = {
  float32: 1,
  uint8: 2,
  int8: 3,
  uint16: 4,
  int16: 5,
  int32: 6,
  int64: 7,
  bool: 9,
  float16: 10,
  float64: 11,
  uint32: 12,
  uint64: 13,
  uint4: 21,
  int4: 22,
  uint8clamped: 128,
  json: 129,
};

const elements = (Object.entries(codes) as [ElementType, number][]).map(([type, code]): Element => {
  const storage: Pick<Storage, 'BYTES_PER_ELEMENT'> & Element['storage'] =
    type === 'uint8clamped' ? Uint8ClampedArray : (storageClasses.get(type) ?? Uint8Array);
  return { type, code, size: storage.BYTES_PER_ELEMENT, storage };
});

export const elementByType: ReadonlyMap<string, Element> = new Map(
  elements.map((element) => [element.type, element]),
);

export const elementByCode: ReadonlyMap<number, Element> = new Map(
  elements.map((element) => [element.code, element]),
);

/** Class names; a Buffer is a Uint8Array. */
export const typeByArray: ReadonlyMap<string, ElementType> = new Map([
  ['Float32Array', 'float32'],
  ['Float64Array', 'float64'],
  ['Float16Array', 'float16'],
  ['Int8Array', 'int8'],
  ['Uint8Array', 'uint8'],
  ['Uint8ClampedArray', 'uint8clamped'],
  ['Int16Array', 'int16'],
  ['Uint16Array', 'uint16'],
  ['Int32Array', 'int32'],
  ['Uint32Array', 'uint32'],
  ['BigInt64Array', 'int64'],
  ['BigUint64Array', 'uint64'],
]);

/** Elements in memory layout. */
export interface Block {
  readonly type: ElementType;
  readonly dims: readonly number[];
  readonly data: Elements;
}

export function countOf(dims: readonly number[], most: number): number {
  if (dims.includes(0)) {
    return 0;
  }
  let count = 1;
  for (const dim of dims) {
    count *= dim;
    if (count > most) {
      return Infinity;
    }
  }
  return count;
}

export const BIG_ENDIAN = endianness() === 'BE';

export function swapOnBigEndian(bytes: Uint8Array, size: number): void {
  if (!BIG_ENDIAN || size === 1) {
    return;
  }
  const view = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (size === 2) {
    view.swap16();
  } else if (size === 4) {
    view.swap32();
  } else {
    view.swap64();
  }
}

/** Numbers that JSON lacks. */
const numbers: ReadonlyMap<unknown, number> = new Map([
  ['NaN', NaN],
  ['Infinity', Infinity],
  ['-Infinity', -Infinity],
  ['-0', -0],
]);

export function numberOfWord(word: unknown): number | undefined {
  return numbers.get(word);
}

export function wordOfNumber(value: number): string | undefined {
  if (Number.isFinite(value) && !Object.is(value, -0)) {
    return undefined;
  }
  return Object.is(value, -0) ? '-0' : String(value);
}

import { isAscii, isUtf8 } from 'node:buffer';
import { Tensor } from '../../../index.js';
import { blankOf, storageClasses } from '../../../doors/values.js';
import { BIG_ENDIAN, countOf, swapOnBigEndian } from '../../../encoding/element-types.js';
import { datatypeOf, typeOfDatatype } from '../../../encoding/json-tensor.js';
import type { ReadContext } from '../../../encoding/json.js';

const LENGTH_BYTES = 4;

/**
 * Little-endian, row by row; a string as its length in 4 bytes, then UTF-8. Numbers are a view of
 * the tensor.
 */
export function bytesOfTensor({ type, data }: Tensor): Buffer {
  if (type === 'string' || Array.isArray(data)) {
    return bytesOfStrings(data as readonly string[]);
  }
  const own = BIG_ENDIAN ? data.slice() : data;
  const bytes = Buffer.from(own.buffer, own.byteOffset, own.byteLength);
  swapOnBigEndian(bytes, own.BYTES_PER_ELEMENT);
  return bytes;
}

/**
 * Returns a view, or a copy if unaligned. BF16, which onnxruntime lacks, becomes float32.
 *
 * @throws InvalidInputError if datatype, shape and bytes don't match
 */
export function tensorOfBytes(
  datatype: string,
  shape: readonly number[],
  bytes: Uint8Array,
  context: ReadContext,
): Tensor {
  context.countTensor();
  context.countBytes(bytes.byteLength);
  if (datatype === 'BF16') {
    return tensorOfBrainFloats(shape, bytes, context);
  }
  const type = typeOfDatatype(datatype);
  if (type === 'string') {
    return new Tensor(type, stringsOf(bytes, shape, context), shape);
  }
  const storage = type && storageClasses.get(type);
  if (!storage) {
    return context.fail(`has the datatype ${datatype}, which the protocol does not have`);
  }
  const size = storage.BYTES_PER_ELEMENT;
  const count = checkSize(datatype, size, shape, bytes, context);
  if (type === 'bool' && !isBool(bytes)) {
    context.fail('has a byte that is neither 0 nor 1; BOOL holds these');
  }
  const isAligned = bytes.byteOffset % size === 0 && !BIG_ENDIAN;
  const { buffer, byteOffset } = isAligned ? bytes : swapped(new Uint8Array(bytes), size);
  return new Tensor(type, new storage(buffer, byteOffset, count), shape);
}

export function datatypeOfTensor({ type }: Tensor): string {
  return datatypeOf(type);
}

function isBool(bytes: Uint8Array): boolean {
  for (let i = 0; i < bytes.length; i++) {
    if (bytes[i]! > 1) {
      return false;
    }
  }
  return true;
}

function swapped(bytes: Uint8Array, size: number): Uint8Array {
  swapOnBigEndian(bytes, size);
  return bytes;
}

function checkSize(
  datatype: string,
  size: number,
  shape: readonly number[],
  { byteLength }: Uint8Array,
  context: ReadContext,
): number {
  const count = countOf(shape, byteLength);
  return count * size === byteLength
    ? count
    : context.fail(
        `has ${byteLength} bytes, which are not those of ${datatype}[${shape.join(', ')}]`,
      );
}

/** A BF16 is the upper half of a float32. */
function tensorOfBrainFloats(
  shape: readonly number[],
  bytes: Uint8Array,
  context: ReadContext,
): Tensor {
  const count = checkSize('BF16', 2, shape, bytes, context);
  const tensor = blankOf('float32', shape);
  const { buffer, byteOffset, byteLength } = tensor.data as Float32Array;
  const bits = new Uint32Array(buffer, byteOffset, byteLength / 4);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  for (let i = 0; i < count; i++) {
    bits[i] = view.getUint16(2 * i, true) << 16;
  }
  return tensor;
}

function stringsOf(bytes: Uint8Array, shape: readonly number[], context: ReadContext): string[] {
  // Each element needs at least its length.
  const count = countOf(shape, bytes.byteLength / LENGTH_BYTES);
  if (count === Infinity) {
    context.fail(`has ${bytes.byteLength} bytes, too few for BYTES[${shape.join(', ')}]`);
  }
  context.countTexts(count);
  const { buffer, byteOffset, byteLength } = bytes;
  const source = Buffer.from(buffer, byteOffset, byteLength);
  // ASCII texts are read several times as fast.
  const ascii = isAscii(source);
  const strings: string[] = [];
  let at = 0;
  while (strings.length < count) {
    const start = at + LENGTH_BYTES;
    const end = start <= byteLength ? start + source.readUInt32LE(at) : Infinity;
    if (end > byteLength) {
      context.fail(`ends inside element ${strings.length}`);
    }
    strings.push(
      ascii
        ? source.toString('latin1', start, end)
        : elementOf(source.subarray(start, end), strings.length, context),
    );
    at = end;
  }
  if (at !== byteLength) {
    context.fail(`has ${byteLength - at} bytes after its last element`);
  }
  return strings;
}

/**
 * Text, or if the context allows it, other bytes as a Uint8Array with its own memory. Typed as
 * string: onnxruntime's tensors hold only text.
 */
export function elementOf(bytes: Buffer, index: number, context: ReadContext): string {
  if (isUtf8(bytes)) {
    return bytes.toString();
  }
  return context.allowsBytes
    ? (new Uint8Array(bytes) as unknown as string)
    : context.fail('is not UTF-8', index);
}

function bytesOfStrings(strings: readonly string[]): Buffer {
  const bytes = Buffer.allocUnsafe(sizeOfStrings(strings));
  writeStringElements(strings, bytes);
  return bytes;
}

/** Size in a BYTES tensor. */
export function sizeOfStrings(strings: readonly string[]): number {
  return strings.reduce((sum, text) => sum + LENGTH_BYTES + Buffer.byteLength(text), 0);
}

export function writeStringElements(strings: readonly string[], bytes: Buffer): void {
  let at = 0;
  for (const element of strings as readonly (string | Uint8Array)[]) {
    const start = at + LENGTH_BYTES;
    const length = typeof element === 'string' ? bytes.write(element, start) : element.length;
    if (typeof element !== 'string') {
      bytes.set(element, start);
    }
    at = bytes.writeUInt32LE(length, at) + length;
  }
}

import { endianness } from 'node:os';

/** Whether numbers lie here the other way round than they cross. */
export const BIG_ENDIAN = endianness() === 'BE';

/** Turns elements from the order of the bytes here to that in which they cross, and back. */
export function swapOnBigEndian(bytes: Uint8Array, size: number): void {
  if (!BIG_ENDIAN || size === 1) {
    return;
  }
  const elements = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (size === 2) {
    elements.swap16();
  } else if (size === 4) {
    elements.swap32();
  } else {
    elements.swap64();
  }
}

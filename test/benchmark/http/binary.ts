export const BINARY = 'application/octet-stream';

/** A copy, since a body may start at an address that no Float32Array can. */
export function toFloats(body: Buffer): Float32Array<ArrayBuffer> {
  return new Float32Array(new Uint8Array(body).buffer);
}

export function toBytes({ buffer, byteOffset, byteLength }: Float32Array): Buffer {
  return Buffer.from(buffer, byteOffset, byteLength);
}

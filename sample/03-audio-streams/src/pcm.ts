/** Bytes of a sample: 16 bits, little-endian. */
export const sampleBytes = 2;

/** The samples of raw 16-bit sound, -1 to 1. */
export function samplesOf(pcm: Uint8Array): Float32Array {
  const bytes = new DataView(pcm.buffer, pcm.byteOffset, pcm.byteLength);
  const length = Math.floor(pcm.length / sampleBytes);
  return Float32Array.from(
    { length },
    (_, index) => bytes.getInt16(index * sampleBytes, true) / 2 ** 15,
  );
}

/** Samples that the model judges at a time: 32 ms. */
export const chunkSamples = 512;

/**
 * Samples before a chunk that the model needs with it. In the chunk alone it detects nothing, and
 * reports no error.
 */
export const contextSamples = 64;

/** The input of the model: the context, then the chunk. */
export const windowSamples = contextSamples + chunkSamples;

/** The context of a stream's first chunk: silence. */
export const noSamples = new Float32Array(contextSamples);

export interface Windows {
  /** One for each full chunk, in order. */
  readonly windows: readonly Float32Array[];
  /** The context of the next chunk, and the first samples of that chunk. */
  readonly rest: Float32Array;
}

/**
 * Cuts the samples of a stream, which come in pieces of any length, into overlapping windows.
 * `rest` is that of the piece before.
 */
export function windowsOf(rest: Float32Array, piece: Float32Array): Windows {
  const samples = new Float32Array(rest.length + piece.length);
  samples.set(rest);
  samples.set(piece, rest.length);

  const count = Math.floor((samples.length - contextSamples) / chunkSamples);
  const windows = Array.from({ length: count }, (_, index) => {
    const start = index * chunkSamples;
    return samples.slice(start, start + windowSamples);
  });
  return { windows, rest: samples.slice(count * chunkSamples) };
}

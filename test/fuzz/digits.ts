import { readFileSync } from 'node:fs';
import { Tensor } from 'nestjs-serving';

const PIXELS = 28 ** 2;
const bytes = readFileSync('sample/01-digits/model/digits.bin');

/** The first hundred known digits of the sample: a byte for the label and one for each pixel. */
export const images: readonly (readonly number[])[] = Array.from({ length: 100 }, (_, i) => {
  const [, ...pixels] = bytes.subarray(i * (PIXELS + 1), (i + 1) * (PIXELS + 1));
  return pixels.map((pixel) => pixel / 255);
});

export function imageTensor(pixels: readonly number[]): Tensor {
  return new Tensor('float32', Float32Array.from(pixels), [1, PIXELS]);
}

/** The list of pixels, if it is one. */
export function pixelsIn(body: unknown): readonly number[] | undefined {
  const pixels =
    typeof body === 'object' && body !== null && 'pixels' in body ? body.pixels : undefined;
  return Array.isArray(pixels) &&
    pixels.length === PIXELS &&
    pixels.every((pixel) => typeof pixel === 'number')
    ? pixels
    : undefined;
}

/**
 * Whether these are the probabilities of one batch mate, and not of another: they differ a little
 * with the size of the batch.
 */
export function sameProbabilities(a: ArrayLike<number>, b: ArrayLike<number>): boolean {
  return a.length === b.length && Array.from(a).every((value, i) => Math.abs(value - b[i]!) < 1e-4);
}

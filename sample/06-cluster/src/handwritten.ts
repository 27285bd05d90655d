import { readFile } from 'node:fs/promises';

export interface Digit {
  readonly label: number;
  /** A byte of ink for each of 28 x 28 pixels, as base64. */
  readonly pixels: string;
}

const PIXELS = 28 ** 2;

/**
 * Three hundred handwritten digits that the model was not trained on: in the file, a byte for the
 * label and a byte for each pixel.
 */
export async function handwritten(): Promise<readonly Digit[]> {
  const file = await readFile(new URL('../model/digits.bin', import.meta.url));
  return Array.from({ length: file.length / (1 + PIXELS) }, (_, index) => {
    const start = index * (1 + PIXELS);
    return { label: file[start]!, pixels: file.toString('base64', start + 1, start + 1 + PIXELS) };
  });
}

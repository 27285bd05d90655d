import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

export const side = 28;

export interface Example {
  readonly label: number;
  /** Row by row, from 0 (paper) to 255 (ink). */
  readonly pixels: Uint8Array;
}

/** The ten thousand digits of the package `mnist`, by label. */
export function readMnist(): Example[] {
  const { resolve } = createRequire(import.meta.url);
  return Array.from({ length: 10 }, (_, label) => label).flatMap((label) => {
    const json = readFileSync(resolve(`mnist/src/digits/${label}.json`), 'utf8');
    const { data } = JSON.parse(json) as { data: number[] };
    const pixels = Uint8Array.from(data, (ink) => Math.round(ink * 255));
    return Array.from({ length: pixels.length / side ** 2 }, (_, index) => ({
      label,
      pixels: pixels.subarray(index * side ** 2, (index + 1) * side ** 2),
    }));
  });
}

/** The digit moved right and down; what leaves the image is lost. */
export function shifted({ label, pixels }: Example, right: number, down: number): Example {
  const moved = new Uint8Array(pixels.length);
  for (let y = Math.max(0, down); y < Math.min(side, side + down); y++) {
    for (let x = Math.max(0, right); x < Math.min(side, side + right); x++) {
      moved[y * side + x] = pixels[(y - down) * side + x - right]!;
    }
  }
  return { label, pixels: moved };
}

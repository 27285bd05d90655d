import { Injectable, type OnModuleInit } from '@nestjs/common';
import { readFile } from 'node:fs/promises';
import { cosine } from './cosine.js';
import { side } from './drawing.js';

export interface KnownDigit {
  readonly label: number;
  /** 0 to 1 for each pixel, row by row. */
  readonly ink: Float32Array;
}

/** The known digit that an image resembles most. */
export interface Match {
  readonly index: number;
  readonly label: number;
  /** Cosine of the two images, at most 1. */
  readonly similarity: number;
}

/** Three hundred handwritten digits that the model was not trained on. */
@Injectable()
export class KnownDigits implements OnModuleInit {
  private digits: readonly KnownDigit[] = [];

  /** In the file, a digit is a byte for the label and a byte for each pixel. */
  async onModuleInit() {
    const file = await readFile(new URL('../model/digits.bin', import.meta.url));
    const size = 1 + side ** 2;
    this.digits = Array.from({ length: file.length / size }, (_, index) => {
      const [label = 0, ...pixels] = file.subarray(index * size, (index + 1) * size);
      return { label, ink: Float32Array.from(pixels, (pixel) => pixel / 255) };
    });
  }

  at(index: number): KnownDigit | undefined {
    return this.digits[index];
  }

  /**
   * The match of each image, none for a blank one. Goes through the known digits once, however many
   * images there are.
   */
  match(images: readonly Float32Array[]): (Match | undefined)[] {
    const matches: (Match | undefined)[] = images.map(() => undefined);
    this.digits.forEach(({ label, ink }, index) => {
      images.forEach((image, place) => {
        const similarity = cosine(image, ink);
        if (similarity > (matches[place]?.similarity ?? 0)) {
          matches[place] = { index, label, similarity };
        }
      });
    });
    return matches;
  }
}

import { createCanvas, type Image, loadImage } from '@napi-rs/canvas';
import { BadRequestException } from '@nestjs/common';
import { Tensor } from 'nestjs-serving';

/** The height that the model reads, in pixels. */
const height = 48;
const channels = 3;

/**
 * The first bytes of PNG and JPEG. Nothing else is decoded: an SVG, for one, could ask for other
 * files.
 */
const signatures = [Buffer.of(0x89, 0x50, 0x4e, 0x47), Buffer.of(0xff, 0xd8, 0xff)];

/** Decodes an upload, which happens in a thread of libuv and not on the event loop. */
export async function decodeImage(upload: Buffer): Promise<Image> {
  try {
    if (signatures.some((signature) => upload.subarray(0, signature.length).equals(signature))) {
      return await loadImage(upload);
    }
  } catch {
    // The error of the decoder is of no use to a client.
  }
  throw new BadRequestException('Send a PNG or JPEG image of one line of text');
}

/** How wide the line is at the height that the model reads. */
export function widthOf(image: Image): number {
  return Math.max(1, Math.round((image.width * height) / image.height));
}

/**
 * The line as the model reads it: one row of planes in the order blue, green, red, each value from
 * -1 to 1.
 *
 * The rest of the full width stays 0, the grey that the model was trained to ignore. With the colour
 * of the paper the model loses letters.
 */
export function toTensor(image: Image, width: number, fullWidth: number): Tensor {
  const pixels = pixelsOf(image, width);
  const values = new Float32Array(channels * height * fullWidth);
  for (let pixel = 0; pixel < width * height; pixel++) {
    const at = Math.floor(pixel / width) * fullWidth + (pixel % width);
    for (let channel = 0; channel < channels; channel++) {
      values[at + channel * height * fullWidth] =
        pixels[pixel * 4 + channels - 1 - channel]! / 127.5 - 1;
    }
  }
  return new Tensor('float32', values, [1, channels, height, fullWidth]);
}

/** Red, green, blue and opacity of every pixel, on white paper. */
function pixelsOf(image: Image, width: number): Uint8ClampedArray {
  const context = createCanvas(width, height).getContext('2d');
  context.fillStyle = 'white';
  context.fillRect(0, 0, width, height);
  context.imageSmoothingQuality = 'high';
  context.drawImage(image, 0, 0, width, height);
  return context.getImageData(0, 0, width, height).data;
}

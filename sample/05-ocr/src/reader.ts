import { BadRequestException } from '@nestjs/common';
import { Batch, defineServing, type ServingOf } from 'nestjs-serving';
import type { Reading } from './ctc.js';
import { decodeImage, toTensor, widthOf } from './line-image.js';

/** The widths in pixels that lines are padded to. Each is a batch key of its own. */
const widths = [160, 320, 480, 640, 960];

/** A serving that reads the image of one line of text. */
export function createReader(modelFolder: string) {
  return defineServing({
    name: 'reader',
    // A thread runs JavaScript: the built file, also when this file runs from its source.
    model: { useFile: new URL('../dist/recognizer.js', import.meta.url) },
    partitions: [{ modelFolder }, { modelFolder }],
    batchKeys: widths.map(String),
    // A pair takes as long as two lines alone; from 4 on each line takes longer.
    batchSize: 2,

    async preprocess(upload: Buffer) {
      const image = await decodeImage(upload);
      const width = widthOf(image);
      const bucket = widths.find((each) => width <= each);
      if (bucket === undefined) {
        throw new BadRequestException('Send a line that is at most 20 times as wide as it is high');
      }
      const x = toTensor(image, width, bucket);
      return { batch: Batch.concatenate([{ x }]).withKey(String(bucket)), info: { bucket } };
    },

    postprocess([reading]: Reading[], { info }) {
      return { ...reading!, bucket: info.bucket };
    },
  });
}

export type Reader = ServingOf<ReturnType<typeof createReader>>;

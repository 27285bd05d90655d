import { Batch, defineServing, lengthBuckets, type ServingOf } from 'nestjs-serving';
import type { Reading } from './ctc.js';
import { decodeImage, toTensor, widthOf } from './line-image.js';

/**
 * The widths in pixels that lines are padded to. Each is a lane of its own; longer lines are
 * refused.
 */
const buckets = lengthBuckets([160, 320, 480, 640, 960]);

/** A serving that reads the image of one line of text. */
export function createReader(modelFolder: string) {
  return defineServing({
    name: 'reader',
    // A thread runs JavaScript: the built file, also when this file runs from its source.
    useFile: new URL('../dist/recognizer.js', import.meta.url),
    partitions: [{ modelFolder }, { modelFolder }],
    batchKeys: buckets.keys,
    // A pair takes as long as two lines alone; from 4 on each line takes longer.
    batchSize: 2,

    async preprocess(upload: Buffer) {
      const image = await decodeImage(upload);
      const width = widthOf(image);
      const { key, length } = buckets.fit(width);
      const x = toTensor(image, width, length);
      return { batch: Batch.concatenate([{ x }]).withKey(key), info: { bucket: length } };
    },

    postprocess([reading]: Reading[], { info }) {
      return { ...reading!, bucket: info.bucket };
    },
  });
}

export type Reader = ServingOf<ReturnType<typeof createReader>>;

import { Batch, createServing, Tensor } from 'nestjs-serving';
import { Random } from '../random.js';
import { idOf } from '../rows.js';
import type { Subject } from '../subject.js';

const PIXELS = 784;
const CLASSES = 10;
const IMAGES = 200;

/** Batches of other sizes round otherwise, in the last digits. */
const TOLERANCE = 1e-4;

/**
 * The model of the digits sample: one of some images stands for a row, and what the model says of
 * it alone is the answer.
 */
export async function digitsSubject(): Promise<Subject> {
  const serving = createServing({
    name: 'digits',
    model: { file: 'sample/01-digits/model/digits.onnx', session: { intraOpNumThreads: 1 } },
    queue: { maxRows: 4000 },
    preprocess: (rows: Float32Array) => ({
      batch: Batch.concatenate([new Tensor('float32', rows, [rows.length / PIXELS, PIXELS])]),
    }),
    postprocess: ({ probabilities }: { probabilities: Tensor }) =>
      probabilities.data as Float32Array,
  });
  await serving.start();
  const random = new Random(2);
  const images: Float32Array[] = [];
  const answers: Float32Array[] = [];
  while (images.length < IMAGES) {
    const image = Float32Array.from({ length: PIXELS }, () => random.next() ** 3);
    const answer = await serving.run(image.slice());
    // No other image may pass for this one.
    if (answers.every((other) => !isNear(answer, 0, other, 10 * TOLERANCE))) {
      images.push(image);
      answers.push(answer);
    }
  }
  return {
    name: 'digits',
    serving,
    share: 2,
    keys: ['default'],
    faults: [],
    isolates: true,
    tellsRuns: false,
    input: (rows) => {
      const data = new Float32Array(rows.length * PIXELS);
      rows.forEach((row, index) => data.set(images[idOf(row) % IMAGES]!, index * PIXELS));
      return data;
    },
    wrong: (output, rows) =>
      output instanceof Float32Array && output.length === rows.length * CLASSES
        ? rows.filter(
            (row, index) =>
              !isNear(output, index * CLASSES, answers[idOf(row) % IMAGES]!, TOLERANCE),
          ).length
        : rows.length,
  };
}

function isNear(
  data: Float32Array,
  offset: number,
  answer: Float32Array,
  tolerance: number,
): boolean {
  return answer.every((value, index) => Math.abs(data[offset + index]! - value) < tolerance);
}

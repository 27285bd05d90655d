/**
 * Trains the model of this sample and writes it, with digits that it has never seen, to the folder
 * given as the argument. Everything is seeded: the same files come out each time.
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Classifier } from './classifier.js';
import { type Example, readMnist, shifted } from './mnist.js';
import { seededRandom, shuffle } from './random.js';

const [folder = '.'] = process.argv.slice(2);
const heldOut = 1_000;
const published = 300;
const epochs = 15;
const batchSize = 32;
const rate = 0.002;

const random = seededRandom(1);
const examples = shuffle(readMnist(), random);
const test = examples.slice(0, heldOut);
const train = examples.slice(heldOut);

const classifier = new Classifier(random);
for (let epoch = 0; epoch < epochs; epoch++) {
  const moved = shuffle(train.map(wobble), random);
  for (let start = 0; start < moved.length; start += batchSize) {
    classifier.learn(moved.slice(start, start + batchSize), rate * (1 - epoch / epochs));
  }
  console.log(
    `epoch ${epoch + 1} of ${epochs}: ${percent(accuracy(test))} of ${heldOut} held-out digits`,
  );
}

writeFileSync(join(folder, 'digits.onnx'), classifier.toOnnx());
writeFileSync(join(folder, 'digits.bin'), Buffer.concat(test.slice(0, published).map(record)));

/** Moved by a pixel at most each way: an MLP knows nothing of places that it has not seen. */
function wobble(example: Example): Example {
  return shifted(example, atMostOne(), atMostOne());
}

function atMostOne(): number {
  return Math.floor(random() * 3) - 1;
}

function accuracy(of: readonly Example[]): number {
  return of.filter(({ label, pixels }) => classifier.classify(pixels) === label).length / of.length;
}

/** The label and the pixels, a byte each: the layout of CIFAR-10's binary files. */
function record({ label, pixels }: Example): Uint8Array {
  return Uint8Array.from([label, ...pixels]);
}

function percent(share: number): string {
  return `${(100 * share).toFixed(1)} %`;
}

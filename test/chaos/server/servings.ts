import { defineServing, type ServingDefinition, Tensor } from 'nestjs-serving';
import type { LettersRow, ServerOptions, SquareRow } from './options.js';

const isolation = 'process';
const batchSize = 8;

/** A worker file has its own options from its partition. */
const twoWith = (options: object = {}): readonly Readonly<Record<string, unknown>>[] => [
  { ...options },
  { ...options },
];

/** The servings that a scenario asks for, each with two processes. */
export function servingsOf({ digits, squares, letters }: ServerOptions): ServingDefinition[] {
  return [
    ...(digits ? [digitsWith(digits)] : []),
    ...(squares ? [squaresWith(squares)] : []),
    ...(letters ? [lettersWith(letters)] : []),
  ] as ServingDefinition[];
}

const digitsWith = (changes: ServerOptions['digits']) =>
  defineServing({
    name: 'digits',
    model: {
      file: 'sample/01-digits/model/digits.onnx',
      session: { intraOpNumThreads: 1 },
      isolation,
    },
    batchSize,
    partitions: 2,
    preprocess: (pixels: Uint8Array) => ({
      batch: {
        image: new Tensor(
          'float32',
          Float32Array.from(pixels, (pixel) => pixel / 255),
          [1, pixels.length],
        ),
      },
    }),
    postprocess: ({ probabilities }: { probabilities: Tensor }) => [
      ...(probabilities.data as Float32Array),
    ],
    ...changes,
  });

const squaresWith = ({
  worker,
  ...changes
}: NonNullable<ServerOptions['squares']>): ServingDefinition<SquareRow, number> => ({
  name: 'squares',
  model: { useFile: new URL('./workers/squares.worker.js', import.meta.url), isolation },
  batchSize,
  partitions: twoWith(worker),
  ...changes,
});

const lettersWith = ({
  worker,
  ...changes
}: NonNullable<ServerOptions['letters']>): ServingDefinition<LettersRow, string> => ({
  name: 'letters',
  model: { useFile: new URL('./workers/letters.worker.js', import.meta.url), isolation },
  batchSize,
  partitions: twoWith(worker),
  ...changes,
});

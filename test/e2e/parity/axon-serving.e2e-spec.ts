import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  createServing,
  InvalidInputError,
  InvalidServingError,
  type ServingDefinition,
  Tensor,
} from 'nestjs-serving';
import { recordBatches } from 'nestjs-serving/testing';
import { doubled, doublingClass } from '../../fixtures/batching/doubling.js';
import { value } from '../../fixtures/models/models.js';
import { node, onnxModel } from '../../fixtures/models/onnx-writer.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { passTime, turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { worker } from '../../fixtures/partitions/worker.js';

/** Whole numbers, for which every batch outputs exactly the same. */
const weights = (rows: number): { type: 'float32'; dims: number[]; data: Float32Array } => ({
  type: 'float32',
  dims: [rows, 2],
  data: Float32Array.from({ length: rows * 2 }, (_, i) => (i % 5) - 2),
});

const oneInput = onnxModel({
  inputs: { x: value('float32', 'rows', 4) },
  outputs: { y: value('float32', 'rows', 2) },
  nodes: [node('MatMul', ['x', 'w'], ['y'])],
  initializers: { w: weights(4) },
});

const twoInputs = onnxModel({
  inputs: { x: value('float32', 'rows', 4), z: value('float32', 'rows', 3) },
  outputs: { y: value('float32', 'rows', 2) },
  nodes: [
    node('MatMul', ['x', 'w'], ['a']),
    node('MatMul', ['z', 'v'], ['b']),
    node('Add', ['a', 'b'], ['y']),
  ],
  initializers: { w: weights(4), v: weights(3) },
});

const severalOutputs = onnxModel({
  inputs: { x: value('float32', 'rows', 4), z: value('float32', 'rows', 3) },
  outputs: {
    same: value('float32', 'rows', 4),
    y: value('float32', 'rows', 2),
    twice: value('float32', 'rows', 3),
  },
  nodes: [
    node('Identity', ['x'], ['same']),
    node('MatMul', ['x', 'w'], ['y']),
    node('Add', ['z', 'z'], ['twice']),
  ],
  initializers: { w: weights(4) },
});

const embedding = onnxModel({
  inputs: { ids: value('int64', 'rows', 4) },
  outputs: { vectors: value('float32', 'rows', 4, 2) },
  nodes: [node('Gather', ['w', 'ids'], ['vectors'])],
  initializers: { w: weights(16) },
});

const session = { intraOpNumThreads: 1 };
const counted = (first: number, rows: number, columns: number): Tensor =>
  floats(
    [rows, columns],
    Array.from({ length: rows * columns }, (_, i) => (first * 31 + i) % 17),
  );
const x = (first: number, rows: number) => ({ x: counted(first, rows, 4) });
const xz = (first: number, rows: number) => ({ ...x(first, rows), z: counted(first + 1, rows, 3) });
const ids = (first: number, rows: number) => ({
  ids: new Tensor(
    'int64',
    BigInt64Array.from({ length: rows * 4 }, (_, i) => BigInt((first + i) % 16)),
    [rows, 4],
  ),
});
const nested = (first: number, rows: number) => ({
  a: [counted(first, rows, 4), { b: counted(first, rows, 2) }],
});

describe('Like Axon.Serving, which pads every batch to its compiled size', () => {
  useVirtualTime();
  const serve = useServings();

  describe.each<[string, Partial<ServingDefinition>, (first: number, rows: number) => object]>([
    ['a model with one input', { model: { file: oneInput, session } }, x],
    ['a model with two inputs', { model: { file: twoInputs, session } }, xz],
    ['a model with several outputs', { model: { file: severalOutputs, session } }, xz],
    ['a model whose inputs are no floats', { model: { file: embedding, session } }, ids],
    [
      'a class with nested inputs and outputs',
      { model: { useClass: doublingClass().Doubling }, warmUp: [nested(0, 1)] },
      nested,
    ],
    [
      'a file with nested inputs and outputs',
      { model: { useFile: worker('doubling') }, warmUp: [nested(0, 1)] },
      nested,
    ],
  ])('%s', (_, how, input) => {
    const setUp = async () => {
      const serving = await serve({
        name: 'padded',
        ...how,
        batchTimeout: 50,
        batchSize: [8],
      } as ServingDefinition);
      return { serving, batches: recordBatches(serving) };
    };
    /** The outputs of the same inputs, each run alone and without padding. */
    const expectedOf = async (inputs: readonly object[]): Promise<unknown[]> => {
      const serving = createServing({ name: 'plain', ...how } as ServingDefinition);
      const replies = [];
      for (const alone of inputs) {
        replies.push(await serving.run(alone));
      }
      await serving.close();
      return replies;
    };

    it.each([
      ['one call of 1 row', [1]],
      ['one call of 8 rows', [8]],
      ['8 calls of 1 row that fill a batch', Array.from({ length: 8 }, () => 1)],
      ['5 calls of 1 row that do not fill a batch', Array.from({ length: 5 }, () => 1)],
      ['100 calls of 1 row', Array.from({ length: 100 }, () => 1)],
      ['100 calls of 1 to 8 rows', Array.from({ length: 100 }, (__, i) => 1 + ((i * 5) % 8))],
      ['a call of more rows than the batch size', [21]],
    ])('[2.4] [3.2] A padded serving answers %s', async (__, rows) => {
      const { serving, batches } = await setUp();
      const inputs = rows.map((count, i) => input(i, count));

      const replies = await passTime(Promise.all(inputs.map((one) => serving.batchedRun(one))));
      await turn();

      expect(replies).toEqual(await expectedOf(inputs));
      expect(new Set(batches.map((batch) => batch.rows + batch.padding))).toEqual(new Set([8]));
      expect(batches.reduce((sum, batch) => sum + batch.rows, 0)).toBe(
        rows.reduce((sum, count) => sum + count, 0),
      );
    });

    it.each([
      ['of 1 row', () => 1],
      ['of 1 to 8 rows', (i: number) => 1 + ((i * 3) % 8)],
    ])('[2.4] [4.1] A padded serving answers 60 calls %s at irregular times', async (__, rows) => {
      const { serving, batches } = await setUp();
      const inputs = Array.from({ length: 60 }, (___, i) => input(i, rows(i)));

      const replies = await passTime(
        Promise.all(
          inputs.map(async (one, i) => {
            await new Promise((resolve) => setTimeout(resolve, (i * 7) % 60));
            return serving.batchedRun(one);
          }),
        ),
        3,
      );
      await turn();

      expect(replies).toEqual(await expectedOf(inputs));
      expect(new Set(batches.map((batch) => batch.rows + batch.padding))).toEqual(new Set([8]));
    });
  });

  describe('compiling', () => {
    it('[2.4] [9.2] Every allowed size of every key runs once on every partition before readiness', async () => {
      const runs: string[] = [];
      const serving = createServing({
        name: 'compiled',
        batchKeys: ['short', 'long'],
        batchSize: [4, 8],
        partitions: 2,
        preprocess: (key: string) => ({ batch: Batch.stack([floats([2], [1, 2])]).withKey(key) }),
        warmUp: ['short', 'long'],
        model: {
          useFactory:
            ({ key, partition }) =>
            (rows: Tensor) => (runs.push(`${key} ${partition}: ${rows.dims[0]}`), doubled(rows)),
        },
      });
      const states: unknown[] = [];
      const starting = serving.start().then(() => states.push(serving.state, runs.length));
      states.push(serving.state);
      await starting;

      expect(states).toEqual(['starting', 'ready', 8]);
      expect(runs.toSorted((a, b) => a.localeCompare(b))).toEqual([
        'long 0: 4',
        'long 0: 8',
        'long 1: 4',
        'long 1: 8',
        'short 0: 4',
        'short 0: 8',
        'short 1: 4',
        'short 1: 8',
      ]);
      await serving.close();
    });

    it('[2.4] Batches are padded to the next allowed size', async () => {
      const sizes: unknown[] = [];
      const serving = await serve({
        name: 'sizes',
        batchSize: [2, 4, 8],
        warmUp: [floats([1], [0])],
        model: { useFactory: () => (rows: Tensor) => (sizes.push(rows.dims[0]), doubled(rows)) },
      });
      sizes.length = 0;
      for (const rows of [1, 2, 3, 4, 5, 8]) {
        expect(await serving.batchedRun(counted(0, rows, 1))).toEqual(doubled(counted(0, rows, 1)));
      }

      expect(sizes).toEqual([2, 2, 4, 4, 8, 8]);
    });

    it.each<[string, Partial<ServingDefinition>, RegExp]>([
      [
        'a model whose inner shape is open, without an example',
        {
          model: onnxModel({
            inputs: { x: value('float32', 'rows', 'width') },
            outputs: { y: value('float32', 'rows', 'width') },
            nodes: [node('Identity', ['x'], ['y'])],
          }),
        },
        /axis 1 of .*"?x"?.* may have any size; give example inputs: warmUp/,
      ],
      [
        "an example of another shape than the model's",
        { model: { file: oneInput, session }, warmUp: [{ x: floats([1, 3], [1, 2, 3]) }] },
        /axis 1 of "x" is 3 and must be 4/,
      ],
      [
        'an example without an input that the model has',
        { model: { file: twoInputs, session }, warmUp: [x(0, 1)] },
        /"z" is missing/,
      ],
    ])('[2.4] [9.1] The start fails for %s', async (_, definition, message) => {
      const serving = createServing({
        name: 'wrong',
        batchSize: [8],
        ...definition,
      } as ServingDefinition);

      await expect(serving.start()).rejects.toThrow(message);
      await serving.close();
    });

    it('[1.9] A batch size beyond the compiled sizes is refused before the start', () => {
      expect(() =>
        createServing({
          name: 'wrong',
          model: { useFactory: () => doubled },
          batchSize: [8],
          batchKeys: [{ key: 'default', batchSize: 16 }],
        }),
      ).toThrow(InvalidServingError);
    });

    it.each<[string, unknown, RegExp]>([
      [
        'of another inner shape',
        { x: floats([1, 3], [1, 2, 3]) },
        /axis 1 of "x" is 3 and must be 4/,
      ],
      [
        'of another type',
        { x: new Tensor('int32', [1, 2, 3, 4], [1, 4]) },
        /"x" is int32 and must be float32/,
      ],
      [
        'with an unknown input',
        { ...x(0, 1), other: counted(0, 1, 1) },
        /the model has no input "other"/,
      ],
    ])('[4.9] A call is refused alone with rows %s', async (_, bad, message) => {
      const serving = await serve({
        name: 'door',
        model: { file: oneInput, session },
        batchSize: [8],
      });

      const [refused, good] = await Promise.allSettled([
        serving.batchedRun(bad),
        serving.batchedRun(x(1, 2)),
      ]);

      expect(refused).toMatchObject({ reason: expect.any(InvalidInputError) });
      expect(refused).toMatchObject({ reason: { message: expect.stringMatching(message) } });
      expect(good).toMatchObject({ status: 'fulfilled' });
    });
  });
});

import { randomUUID } from 'node:crypto';
import { rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it, jest } from '@jest/globals';
import { Batch, InvalidOutputError, type LocalServing, Tensor } from 'nestjs-serving';
import type { DeclaredAxes } from '../../../lib/core/partitions/model/model-signature.js';
import { recordWarnings } from '../../fixtures/recorded-warnings.js';
import { collect } from '../../fixtures/async/collect.js';
import {
  echoModel,
  linearModel,
  quantisedModel,
  recurrentModel,
  transposingModel,
  value,
} from '../../fixtures/models/models.js';
import { node, onnxModel } from '../../fixtures/models/onnx-writer.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

const digits = new URL('../../../sample/01-digits/model/digits.onnx', import.meta.url);

/** The input of a recurrent model for one row. `x` and the state are made from `n`. */
const step = (n: number, { layers = 2, rate = 1 } = {}): Record<string, Tensor> => ({
  x: floats([1, 3], [n, n, n]),
  state: floats(
    [layers, 1, 3],
    Array.from({ length: layers * 3 }, (_, i) => 100 * n + i),
  ),
  rate: new Tensor('int64', [BigInt(rate)], []),
});

/** The output of the model for that input. */
const stepped = (
  n: number,
  { layers = 2, rate = 1 } = {},
): Record<'y' | 'next' | 'used', Tensor> => ({
  y: floats([1, 3], [n * rate, n * rate, n * rate]),
  next: floats(
    [layers, 1, 3],
    Array.from({ length: layers * 3 }, (_, i) => 101 * n + i),
  ),
  used: new Tensor('int64', [BigInt(rate)], []),
});

/** An image of five n and one n + 6, less its mean, and the mean. */
const spreadOf = (n: number): object => ({
  y: floats([2, 3], [-1, -1, -1, -1, -1, 5]),
  mean: floats([1, 1], [n + 1]),
});

const statesOnAxis1 = { inputs: { state: { batchAxis: 1 } }, outputs: { next: { batchAxis: 1 } } };

const ones = (...dims: number[]): Tensor =>
  new Tensor('float32', new Float32Array(dims.reduce((a, b) => a * b)).fill(1), dims);

/** The number of rows of each later batch. */
function sizesOf(serving: LocalServing): number[] {
  const sizes: number[] = [];
  serving.eventsOf('batch:end').subscribe(({ rows }) => sizes.push(rows));
  return sizes;
}

describe('The batch axes of a model', () => {
  const serve = useServings();
  let warnings: string[];

  beforeEach(() => {
    warnings = recordWarnings();
  });

  afterEach(() => {
    jest.restoreAllMocks();
  });

  it.each<[string, number, number | string, object]>([
    ['two layers', 2, 2, {}],
    ['one layer', 1, 1, {}],
    ['a declared dynamic number of layers', 3, 'layers', statesOnAxis1],
  ])(
    '[1.8] The states of %s are joined on axis 1, and each caller gets its own',
    async (_, layers, dim, axes) => {
      const serving = await serve({
        name: 'net',
        model: { file: recurrentModel(dim, 'batch'), ...axes },
      });
      const sizes = sizesOf(serving);

      const replies = await Promise.all(
        [1, 2, 3].map((n) => serving.batchedRun(step(n, { layers }))),
      );

      expect(sizes).toEqual([3]);
      expect(replies).toEqual([1, 2, 3].map((n) => stepped(n, { layers })));
    },
  );

  it('[1.8] Rows with one value of a shared input batch together, and rows with two values never', async () => {
    const serving = await serve({ name: 'net', model: recurrentModel(2, 'batch') });
    const sizes = sizesOf(serving);
    const rates = [8, 16, 8, 16, 16];

    const replies = await Promise.all(
      rates.map((rate, n) => serving.batchedRun(step(n, { rate }))),
    );

    expect(sizes).toEqual([2, 3]);
    expect(replies).toEqual(rates.map((rate, n) => stepped(n, { rate })));
  });

  it('[1.8] Rows that preprocess puts on axis 1 are accepted', async () => {
    const serving = await serve({
      name: 'net',
      model: recurrentModel(2, 'batch'),
      preprocess: (ns) => ({
        batch: Batch.concatenate(
          (ns as number[]).map((n) => step(n)),
          { state: 1, rate: null },
        ),
      }),
      postprocess: (output) => Array.from((output as { next: Tensor }).next.data as Float32Array),
    });

    expect(await serving.batchedRun([1, 2])).toEqual([
      101, 102, 103, 202, 203, 204, 104, 105, 106, 205, 206, 207,
    ]);
  });

  it('[1.8] A call with its rows on axis 1 is split over batches, and its replies are joined', async () => {
    const serving = await serve({ name: 'net', model: recurrentModel(2, 'batch'), batchSize: 2 });
    const rate = new Tensor('int64', [1n], []);

    const reply = await serving.batchedRun({ x: ones(5, 3), state: ones(2, 5, 3), rate });

    expect(reply).toMatchObject({
      y: { dims: [5, 3] },
      next: { dims: [2, 5, 3], data: new Float32Array(30).fill(2) },
    });
  });

  it.each([
    ['a map', (x: Tensor) => ({ x })],
    ['a bare tensor', (x: Tensor) => x],
  ])('[1.8] The rows of an input lie on the declared axis: of %s', async (_, inputOf) => {
    const rows = { batchAxis: 1 };
    const serving = await serve({
      name: 'columns',
      model: {
        file: echoModel({ x: value('float32', 'units', 'batch') }),
        inputs: { x: rows },
        outputs: { same_x: rows },
      },
    });
    const sizes = sizesOf(serving);

    const columns = [floats([2, 1], [1, 2]), floats([2, 1], [3, 4])];
    const replies = await Promise.all(columns.map((column) => serving.batchedRun(inputOf(column))));

    expect(sizes).toEqual([2]);
    expect(replies).toEqual(columns.map((column) => ({ same_x: column })));
  });

  it.each<[string, DeclaredAxes]>([
    ['that the model names', {}],
    ['that is declared', { y: { batchAxis: 1 } }],
  ])('[1.8] The rows of an output lie on the axis %s', async (_, outputs) => {
    const serving = await serve({ name: 'flip', model: { file: transposingModel(), outputs } });

    const replies = await Promise.all(
      [0, 1].map((n) => serving.batchedRun({ x: floats([1, 3], [n, n + 1, n + 2]) })),
    );

    expect(replies).toEqual([{ y: floats([3, 1], [0, 1, 2]) }, { y: floats([3, 1], [1, 2, 3]) }]);
  });

  it('[1.8] [6.3] The batch axis of every output is checked at the start and in each run, with advice in the error', async () => {
    const file = transposingModel();
    const model = { file, outputs: { y: { batchAxis: 0 } } };

    await expect(serve({ name: 'flip', model })).rejects.toThrow(
      'Output "y" has the shape [3, 1]; axis 0 must have the 1 row of the batch. ' +
        'If its rows lie on another axis, declare it: outputs: { y: { batchAxis: ... } }',
    );
    const serving = await serve({ name: 'late', model: { ...model, checkRows: false } });
    const reply = serving.batchedRun({ x: floats([2, 3], [0, 1, 2, 3, 4, 5]) });

    await expect(reply).rejects.toThrow(InvalidOutputError);
    await expect(reply).rejects.toThrow(
      'Output "y" has the shape [3, 2]; axis 0 must have the 2 rows of the batch',
    );
  });

  it.each([1, 4])(
    '[1.8] A model of fixed batch %d runs in steps, with the numbers of single runs',
    async (fixed) => {
      const model = linearModel(fixed);
      const [stepping, single] = [
        await serve({ name: 'fixed', model: { file: model, inputs: { x: { batchAxis: 0 } } } }),
        await serve({ name: 'free', model: linearModel('batch') }),
      ];
      const inputs = Array.from({ length: 7 }, (_, n) => ({
        x: floats([1, 3], [n / 3, -n, n ** 2]),
      }));

      const replies = await Promise.all(inputs.map((input) => stepping.batchedRun(input)));

      expect(replies).toEqual(await Promise.all(inputs.map((input) => single.run(input))));
      expect(warnings).toEqual([
        expect.stringContaining(`The model of serving "fixed" has a fixed batch of ${fixed}`),
      ]);
    },
  );

  it('[1.8] A recurrent model of fixed batch runs row by row, with its state on the declared axis', async () => {
    const fetches = ['y', 'next'];
    const serving = await serve({
      name: 'net',
      model: { file: recurrentModel(2, 1), fetches, ...statesOnAxis1 },
    });
    const sizes = sizesOf(serving);

    const replies = await Promise.all([1, 2, 3].map((n) => serving.batchedRun(step(n))));

    expect(sizes).toEqual([3]);
    expect(replies).toEqual([1, 2, 3].map((n) => stepped(n)).map(({ y, next }) => ({ y, next })));
  });

  it('[W1] A model of one row with outputs without rows runs call by call, with a warning', async () => {
    const serving = await serve({
      name: 'net',
      model: { file: recurrentModel(2, 1), ...statesOnAxis1 },
    });
    const sizes = sizesOf(serving);
    const rates = [1, 2, 3, 2];

    const replies = await Promise.all(
      rates.map((rate, n) => serving.batchedRun(step(n, { rate }))),
    );

    expect(replies).toEqual(rates.map((rate, n) => stepped(n, { rate })));
    expect(sizes).toEqual([1, 1, 1, 1]);
    expect(warnings).toEqual([
      expect.stringContaining('no rows can be told apart in its output: each call is one run'),
    ]);
    await expect(serving.batchedRun({ ...step(1), x: ones(2, 3) })).rejects.toThrow(
      'axis 0 of "x" is 2 and must be 1',
    );
  });

  it.each<[string, (x: Tensor) => unknown]>([
    ['a map', (x) => ({ x })],
    ['a bare tensor', (x) => x],
  ])(
    '[W1] A model declared to have no batch axis runs each call alone, with any batch size: of %s',
    async (_, inputOf) => {
      const model = onnxModel({
        inputs: { x: value('float32', 2, 3) },
        outputs: { y: value('float32', 2, 3), mean: value('float32', 1, 1) },
        nodes: [node('ReduceMean', ['x'], ['mean']), node('Sub', ['x', 'mean'], ['y'])],
      });
      const serving = await serve({
        name: 'image',
        model: { file: model, inputs: { x: { batchAxis: null } } },
        batchTimeout: 5,
        batchSize: 8,
      });
      const sizes = sizesOf(serving);
      const images = [0, 1, 2, 3].map((n) => floats([2, 3], [n, n, n, n, n, n + 6]));

      serving.setBatchSize(4);
      const replies = await Promise.all(images.map((image) => serving.batchedRun(inputOf(image))));

      expect(replies).toEqual([0, 1, 2, 3].map(spreadOf));
      expect(await serving.run(inputOf(images[3]!))).toEqual(spreadOf(3));
      expect(sizes).toEqual([1, 1, 1, 1, 1]);
      expect(await collect(serving.stream(inputOf(images[2]!), { hooks: ['mean'] }))).toMatchObject(
        [{ hook: 'mean', value: floats([1, 1], [3]) }, { output: spreadOf(2) }],
      );
      await expect(serving.batchedRun(Batch.concatenate([{ x: images[0]! }]))).rejects.toThrow(
        '"x" is given with rows on axis 0 and has no batch axis; give the tensor itself',
      );
    },
  );

  it('[W1] Batches are multiples of a fixed batch, and a call of exactly its rows is never split', async () => {
    const model = echoModel({ x: value('float32', 4, 3) });
    const serving = await serve({
      name: 'fixed',
      model: { file: model, inputs: { x: { batchAxis: 0 } } },
      batchSize: 11,
      batchTimeout: 5,
    });
    const sizes = sizesOf(serving);

    await Promise.all([4, 4, 4].map((rows) => serving.batchedRun({ x: ones(rows, 3) })));
    serving.setBatchSize(3);
    await Promise.all([3, 4].map((rows) => serving.batchedRun({ x: ones(rows, 3) })));

    expect(sizes).toEqual([8, 4, 3, 4]);
  });

  it('[W1] A run of a fixed batch that outputs another number of rows fails as a whole', async () => {
    const model = onnxModel({
      inputs: { x: value('float32', 2, 3) },
      outputs: { y: value('float32', 'found', 3) },
      nodes: [node('Concat', ['x', 'x'], ['y'], { axis: 0 })],
    });
    const axes = { batchAxis: 0 };
    const serving = await serve({
      name: 'fixed',
      // The check of rows would refuse the model before any call.
      model: { file: model, checkRows: false, inputs: { x: axes }, outputs: { y: axes } },
    });

    const reply = serving.batchedRun({ x: ones(2, 3) });

    await expect(reply).rejects.toThrow(InvalidOutputError);
    await expect(reply).rejects.toThrow('A run of 2 rows gave 4: y: float32[rows, 3]');
  });

  it('[1.8] A dynamically quantised model leads to one warning', async () => {
    await serve({ name: 'small', model: quantisedModel(), partitions: 2 });

    expect(warnings).toEqual([
      expect.stringContaining(
        'The model of serving "small" quantises its activations over the whole batch (DynamicQuantizeLinear)',
      ),
    ]);
  });

  it('[1.8] A dynamically quantised model is recognised across two pieces of its file', async () => {
    const piece = 2 ** 20;
    const model = Buffer.from(quantisedModel('-'.repeat(piece / 2 - 30)));
    const mark = 'DynamicQuantizeLinear';
    const file = join(tmpdir(), `${randomUUID()}.onnx`);
    await writeFile(file, model);

    await serve({ name: 'small', model: file });
    await rm(file);

    expect(model.subarray(piece - mark.length, piece + mark.length).includes(mark)).toBe(true);
    expect(model.subarray(piece).includes(mark)).toBe(false);
    expect(warnings).toHaveLength(1);
  });

  it('[1.8] A row of a dynamically quantised model depends on its batch mates', async () => {
    const serving = await serve<{ y: Tensor }>({ name: 'small', model: quantisedModel() });
    const x = floats([1, 2], [0.1, 0.2]);

    const [alone, together] = [
      await serving.run({ x }),
      (
        await Promise.all(
          [{ x }, { x: floats([1, 2], [100, 200]) }].map((input) => serving.batchedRun(input)),
        )
      )[0]!,
    ];

    expect(alone.y.data).not.toEqual(together.y.data);
  });

  it('[1.8] A float model with a dynamic batch leads to no warning', async () => {
    await serve({ name: 'digits', model: digits });

    expect(warnings).toEqual([]);
  });

  it('[1.8] [4.6] Batched rows of a float model get the numbers of single runs', async () => {
    const serving = await serve<{ probabilities: Tensor }>({
      name: 'digits',
      model: digits,
      batchSize: 16,
    });
    const images = Array.from({ length: 40 }, (_, n) =>
      Float32Array.from({ length: 784 }, (_ink, i) => ((i * (n + 1)) % 17) / 17),
    );
    const inputs = images.map((ink) => ({ image: new Tensor('float32', ink, [1, 784]) }));

    const batched = await Promise.all(inputs.map((input) => serving.batchedRun(input)));

    for (const [n, reply] of batched.entries()) {
      const alone = await serving.run(inputs[n]);
      for (const [digit, probability] of Array.from(
        reply.probabilities.data as Float32Array,
      ).entries()) {
        expect(probability).toBeCloseTo(alone.probabilities.data[digit] as number, 5);
      }
    }
  });
});

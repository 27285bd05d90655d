import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  type LocalServing,
  type ModelRunner,
  type ServingOptions,
  Tensor,
} from 'nestjs-serving';
import type { BatchCost } from '../../../lib/core/batching/fill.js';
import type { DeclaredAxes } from '../../../lib/core/partitions/model/model-signature.js';
import { collect } from '../../fixtures/async/collect.js';
import { value } from '../../fixtures/models/models.js';
import { elementTypes, node, onnxModel } from '../../fixtures/models/onnx-writer.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { floats } from '../../fixtures/values/tensors.js';

const weights = Float32Array.of(1, 10, 100);

/**
 * Texts of any length: `hidden` has a vector for each token, `most` is the largest token of a row,
 * and `pairs` has a number for each pair of tokens.
 */
const encoder = onnxModel({
  inputs: { ids: value('int64', 'batch', 'length'), mask: value('float32', 'batch', 'length') },
  outputs: {
    hidden: value('float32', 'batch', 'length', 3),
    most: value('float32', 'batch'),
    count: value('float32', 'batch'),
    pairs: value('float32', 'batch', 'length', 'length'),
  },
  nodes: [
    node('Cast', ['ids'], ['numbers'], { to: elementTypes.float32 }),
    node('Unsqueeze', ['numbers', 'two'], ['column']),
    node('Unsqueeze', ['numbers', 'one'], ['row']),
    node('MatMul', ['column', 'weights'], ['hidden']),
    node('MatMul', ['column', 'row'], ['pairs']),
    node('ReduceMax', ['numbers'], ['most'], { axes: [1], keepdims: 0 }),
    node('ReduceSum', ['mask', 'one'], ['count'], { keepdims: 0 }),
  ],
  initializers: {
    weights: { type: 'float32', dims: [1, 3], data: weights },
    one: { type: 'int64', dims: [1], data: BigInt64Array.of(1n) },
    two: { type: 'int64', dims: [1], data: BigInt64Array.of(2n) },
  },
});

/** `y = x + x`, with rows on axis 1 and lengths on axis 0. */
const signals = onnxModel({
  inputs: { x: value('float32', 'length', 'batch', 2) },
  outputs: { y: value('float32', 'length', 'batch', 2) },
  nodes: [node('Add', ['x', 'x'], ['y'])],
});

const inputs = {
  ids: { variableAxis: 1, padWith: 99 },
  mask: { variableAxis: 1 },
} satisfies DeclaredAxes;
const outputs = { hidden: { variableAxis: 1 } } satisfies DeclaredAxes;
const fetches = ['hidden', 'most', 'count'];

/** Texts of equally many tokens. */
function texts(...rows: readonly (readonly number[])[]): Record<'ids' | 'mask', Tensor> {
  const dims = [rows.length, rows[0]!.length];
  const ids = BigInt64Array.from(rows.flat(), BigInt);
  return {
    ids: new Tensor('int64', ids, dims),
    mask: new Tensor('float32', new Float32Array(ids.length).fill(1), dims),
  };
}

const hiddenOf = (...rows: readonly (readonly number[])[]): Tensor =>
  floats(
    [rows.length, rows[0]!.length, 3],
    rows.flat().flatMap((token) => [...weights].map((weight) => token * weight)),
  );

/** The rows of each later batch. */
function sizesOf(serving: LocalServing): number[] {
  const sizes: number[] = [];
  serving.eventsOf('batch:end').subscribe(({ rows }) => sizes.push(rows));
  return sizes;
}

/** The input of a model with two lengths. */
const twoLengths = (a: number, b: number): object => ({
  a: floats(
    [1, a],
    Array.from({ length: a }, () => 1),
  ),
  b: floats(
    [1, b],
    Array.from({ length: b }, () => 1),
  ),
});

interface Reply {
  readonly hidden: Tensor;
  readonly most: Tensor;
  readonly count: Tensor;
}

describe('The variable axis of a model', () => {
  const serve = useServings();

  const start = (
    options: Partial<ServingOptions> & object = {},
    isolation: ModelRunner['isolation'] = 'thread',
  ): Promise<LocalServing> =>
    serve({
      name: 'texts',
      // The padding shows in `most`, so the check of rows would refuse the model.
      model: { file: encoder, inputs, outputs, fetches, isolation, checkRows: false },
      batchTimeout: 50,
      ...options,
    });

  it.each(['thread', 'process', 'none'] as const)(
    '[14.4] Rows of different lengths share a batch, are padded, and get outputs of their own length (%s)',
    async (isolation) => {
      const serving = await start({ batchSize: 4 }, isolation);
      const sizes = sizesOf(serving);
      const replies = (await Promise.all([
        serving.batchedRun(texts([1, 2, 3])),
        serving.batchedRun(texts([4], [5])),
        serving.batchedRun(texts([6, 7, 8, 9, 1])),
      ])) as Reply[];

      expect(sizes).toEqual([4]);
      expect(replies.map(({ hidden }) => hidden)).toEqual([
        hiddenOf([1, 2, 3]),
        hiddenOf([4], [5]),
        hiddenOf([6, 7, 8, 9, 1]),
      ]);
      // The padding that the model saw.
      expect(replies.map(({ most }) => [...(most.data as Float32Array)])).toEqual([
        [99],
        [99, 99],
        [9],
      ]);
      expect(replies.map(({ count }) => [...(count.data as Float32Array)])).toEqual([
        [3],
        [1, 1],
        [5],
      ]);
    },
  );

  it('[14.4] Rows on another axis than the first are padded and cut back, too', async () => {
    const serving = await serve({
      name: 'signals',
      batchSize: 3,
      batchTimeout: 50,
      model: {
        file: signals,
        inputs: { x: { batchAxis: 1, variableAxis: 0 } },
        outputs: { y: { batchAxis: 1, variableAxis: 0 } },
      },
    });
    const sizes = sizesOf(serving);
    const replies = await Promise.all([
      serving.batchedRun(floats([1, 1, 2], [1, 2])),
      serving.batchedRun(floats([3, 1, 2], [1, 2, 3, 4, 5, 6])),
      serving.batchedRun({ x: floats([2, 1, 2], [7, 8, 9, 10]) }),
    ]);

    expect(sizes).toEqual([2, 1]);
    expect(replies).toEqual([
      { y: floats([1, 1, 2], [2, 4]) },
      { y: floats([3, 1, 2], [2, 4, 6, 8, 10, 12]) },
      { y: floats([2, 1, 2], [14, 16, 18, 20]) },
    ]);
  });

  it('[14.4] A call that is split over batches with other rows gets outputs of one length', async () => {
    const serving = await start({ batchSize: 2 });
    const replies = (await Promise.all([
      serving.batchedRun(texts([1, 2, 3])),
      serving.batchedRun(texts([4, 5], [6, 7])),
      serving.batchedRun(texts([8])),
    ])) as Reply[];

    expect(replies.map(({ hidden }) => hidden)).toEqual([
      hiddenOf([1, 2, 3]),
      hiddenOf([4, 5], [6, 7]),
      hiddenOf([8]),
    ]);
  });

  it('[14.4] Streams, single runs, batches and allowed sizes keep the length of each row', async () => {
    const serving = await start({
      batchSize: [1, 4],
      warmUp: [texts([1, 2])],
    });
    const [streamed, batch, alone] = await Promise.all([
      collect(serving.stream(texts([1, 2, 3]))),
      serving.batchedRun(Batch.concatenate([texts([4])])),
      serving.run(texts([5, 6])),
    ]);

    expect((streamed as { output: Reply }[])[0]!.output.hidden).toEqual(hiddenOf([1, 2, 3]));
    expect((batch as Reply).hidden).toEqual(hiddenOf([4]));
    expect((alone as Reply).hidden).toEqual(hiddenOf([5, 6]));
  });

  it('[14.2] [14.3] [14.4] Rows of similar length share the batches of a model in a thread, within their budget', async () => {
    const lengths = Array.from({ length: 120 }, (_, index) => 1 + ((index * 37) % 50));
    const serving = await start({
      batchSize: {
        rows: 16,
        cost: {
          of: ({ ids }: { ids: Tensor }) => ids.dims[1]!,
          most: 100,
          padded: true,
          similar: { overtaking: 20 },
        },
      },
      batchTimeout: 0,
    });
    const costs: BatchCost[] = [];
    serving.eventsOf('batch:start').subscribe(({ cost }) => costs.push(cost!));
    const replies = (await Promise.all(
      lengths.map((length) =>
        serving.batchedRun(texts(Array.from({ length }, (_, index) => index + length))),
      ),
    )) as Reply[];

    replies.forEach(({ hidden }, index) => {
      const length = lengths[index]!;
      expect(hidden).toEqual(hiddenOf(Array.from({ length }, (_, token) => token + length)));
    });
    const tokens = lengths.reduce((sum, length) => sum + length);
    expect(costs.reduce((all, { sum }) => all + sum, 0)).toBe(tokens);
    // In the order of arrival, it would be 1.38 times as much.
    expect(costs.reduce((all, { padded }) => all + padded, 0)).toBeLessThan(1.25 * tokens);
    expect(Math.max(...costs.map(({ padded }) => padded))).toBeLessThanOrEqual(100);
  });

  it('[14.4] A hook is cut back, and one that cannot be is refused', async () => {
    const serving = await start({ batchSize: 2 });
    const hooked = collect(serving.stream(texts([1, 2]), { hooks: ['hidden'] }));
    await Promise.all([hooked, serving.batchedRun(texts([3, 4, 5]))]);

    expect((await hooked)[0]).toEqual({ hook: 'hidden', value: hiddenOf([1, 2]) });
    await expect(collect(serving.stream(texts([1]), { hooks: ['pairs'] }))).rejects.toThrow(
      'Serving "texts" pads rows to the longest of their batch, and the output of the hook ' +
        '"pairs" would be padded too; declare its variableAxis',
    );
  });

  it('[14.4] Inputs of different lengths in one call are refused, and no other call', async () => {
    const serving = await serve({
      name: 'texts',
      model: {
        file: onnxModel({
          inputs: { a: value('float32', 'batch', 'm'), b: value('float32', 'batch', 'n') },
          outputs: { c: value('float32', 'batch', 'm') },
          nodes: [node('Identity', ['a'], ['c'])],
        }),
        inputs: { a: { variableAxis: 1 }, b: { variableAxis: 1 } },
        outputs: { c: { variableAxis: 1 } },
      },
    });
    const calls = await Promise.allSettled([
      serving.batchedRun(twoLengths(2, 3)),
      serving.batchedRun(twoLengths(2, 2)),
    ]);

    expect(calls).toMatchObject([
      {
        reason: {
          code: 'SERVING_INVALID_INPUT',
          message:
            'Serving "texts" pads its rows to one length, and was given "a" of length 2 and "b" ' +
            'of length 3; give all of them the same length',
        },
      },
      { value: { c: floats([1, 2], [1, 1]) } },
    ]);
  });

  it('[14.4] An output without the length of its batch fails its calls', async () => {
    const serving = await serve({
      name: 'texts',
      batchSize: 2,
      batchTimeout: 50,
      model: {
        file: onnxModel({
          inputs: { x: value('float32', 'batch', 'length') },
          outputs: { y: value('float32', 'batch', '') },
          nodes: [node('Concat', ['x', 'x'], ['y'], { axis: 1 })],
        }),
        // The check of rows would refuse the model before any call.
        checkRows: false,
        inputs: { x: { variableAxis: 1 } },
        outputs: { y: { variableAxis: 1 } },
      },
    });
    const calls = [1, 2].map((length) =>
      serving.batchedRun(
        floats(
          [1, length],
          Array.from({ length }, () => 1),
        ),
      ),
    );

    const message =
      'Serving "texts": Output "y" has the shape [2, 4]; its variableAxis 1 must have the length 2, to which the ' +
      'rows of the batch were padded';
    expect(await Promise.allSettled(calls)).toMatchObject([
      { reason: { code: 'SERVING_INVALID_OUTPUT', message } },
      { reason: { code: 'SERVING_INVALID_OUTPUT', message } },
    ]);
  });

  it.each<[string, object, string]>([
    [
      'the axis of its rows',
      { inputs: { ...inputs, ids: { variableAxis: 0 } }, outputs, fetches },
      'The input ids: int64[batch, length] counts its rows on axis 0: its variableAxis must be ' +
        'another axis than that of its rows, and dynamic in the file',
    ],
    [
      'no axis',
      { inputs: { ...inputs, ids: { variableAxis: 2 } }, outputs, fetches },
      'The input ids: int64[batch, length] has no axis 2',
    ],
    [
      'a fixed axis',
      { inputs, outputs: { hidden: { variableAxis: 2 } }, fetches },
      'The output hidden: float32[batch, length, 3] has the fixed length 3 on axis 2',
    ],
    [
      'an axis that another input shares',
      { inputs: { ids: { variableAxis: 1 } }, outputs, fetches },
      'Axis 1 of the input mask: float32[batch, length] has the length of a variable axis, and is ' +
        'not declared: declare inputs: { "mask": { variableAxis: 1 } }',
    ],
    [
      'an axis that an output shares',
      { inputs, fetches },
      'declare outputs: { "hidden": { variableAxis: 1 } }, or leave the output out of fetches',
    ],
    [
      'an output alone',
      { outputs, fetches },
      'no input has one, to whose length its rows are cut back; declare that of an input too',
    ],
    [
      'an element of another type',
      { inputs: { ...inputs, ids: { variableAxis: 1, padWith: 'none' } }, outputs, fetches },
      'padWith: "ids" cannot be filled with "none", which is no element of a int64 tensor',
    ],
    [
      'that of an output with padding',
      { inputs, outputs: { hidden: { variableAxis: 1, padWith: 1 } }, fetches },
      'is declared with padWith, and only rows of inputs are padded; leave it out',
    ],
    [
      'padding without an axis',
      { inputs: { ...inputs, ids: { batchAxis: 0, padWith: 1 } }, outputs, fetches },
      'is declared with padWith and without the variableAxis to pad; declare both',
    ],
  ])('[14.4] [1.9] A variable axis that is %s fails at boot', async (_what, ports, message) => {
    await expect(
      start({ model: { file: encoder, ...ports } } as Partial<ServingOptions>),
    ).rejects.toThrow(message);
  });

  it('[14.2] A budget for a model with a fixed batch fails at boot, and its session is closed', async () => {
    const fixed = onnxModel({
      inputs: { x: value('float32', 4, 2) },
      outputs: { y: value('float32', 4, 2) },
      nodes: [node('Identity', ['x'], ['y'])],
    });
    const starting = start({
      model: { file: fixed, inputs: { x: { batchAxis: 0 } } },
      batchSize: { cost: { of: () => 1, most: 8 } },
    } as Partial<ServingOptions>);

    await expect(starting).rejects.toThrow(
      'Serving "texts" has batchSize.cost, and its model runs 4 rows at a time whatever they cost',
    );
  });
});

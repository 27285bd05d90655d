import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { createServing, Tensor } from 'nestjs-serving';
import type { DeclaredAxes } from '../../../lib/doors/models.js';
import { value } from '../../fixtures/models/models.js';
import { node, type OnnxModel, onnxModel } from '../../fixtures/models/onnx-writer.js';
import { refusedOrAlone, type Tensors } from '../../fixtures/models/rows-alone.js';

/**
 * Random ONNX models whose rows have any length, with outputs that ignore padding, read it, or know
 * it by a mask. A start refuses a model in words, or each caller gets exactly what onnxruntime gives
 * its row alone, at its own length.
 */
describe('A model with rows of any length', () => {
  it('[FR2] [FQ1] is refused at the start, or gives each row its answer alone, beside rows of any length', async () => {
    const ends = { refused: 0, answered: 0, unchecked: 0 };
    await fc.assert(
      fc.asyncProperty(longModel, async (model) => {
        ends[await play(model)]++;
      }),
      { numRuns: RUNS },
    );
    expect(Math.min(ends.refused, ends.answered)).toBeGreaterThan(RUNS / 10);
  });
});

/** With SEED other cases, and more of them. */
const RUNS = process.env['SEED'] === undefined ? 120 : 1000;

const whole = (...values: number[]) => ({
  type: 'int64' as const,
  dims: [values.length],
  data: BigInt64Array.from(values, BigInt),
});

const initializers = {
  one: whole(1),
  back: whole(-1),
  first: whole(-(2 ** 31)),
  scalarOne: { ...whole(1), dims: [] },
} satisfies OnnxModel['initializers'];

/** How an output follows from `x` and its `mask`, which are [batch, length]. */
interface Kind {
  readonly nodes: (to: string) => OnnxModel['nodes'];
  /** Of the length of `x`; else one number. */
  readonly isLong: boolean;
}

const KINDS: Readonly<Record<string, Kind>> = {
  same: long('Identity'),
  cumulative: long('CumSum', {}, 'scalarOne'),
  'in reverse': long('Slice', {}, 'back', 'first', 'one', 'back'),
  softmax: long('Softmax', { axis: 1 }),
  sum: { nodes: (to) => [node('ReduceSum', ['x', 'one'], [to])], isLong: false },
  mean: { nodes: (to) => [node('ReduceMean', ['x'], [to], { axes: [1] })], isLong: false },
  largest: { nodes: (to) => [node('ReduceMax', ['x'], [to], { axes: [1] })], isLong: false },
  least: { nodes: (to) => [node('ReduceMin', ['x'], [to], { axes: [1] })], isLong: false },
  last: {
    nodes: (to) => [node('Slice', ['x', 'back', 'end', 'one'], [to])],
    isLong: false,
  },
  'masked mean': {
    nodes: (to) => [
      node('Mul', ['x', 'mask'], [`${to} kept`]),
      node('ReduceSum', [`${to} kept`, 'one'], [`${to} sum`]),
      node('ReduceSum', ['mask', 'one'], [`${to} count`]),
      node('Div', [`${to} sum`, `${to} count`], [to]),
    ],
    isLong: false,
  },
  'mean of all rows': {
    nodes: (to) => [
      node('ReduceMean', ['x'], [`${to} mean`]),
      node('Add', ['x', `${to} mean`], [to]),
    ],
    isLong: true,
  },
};

function long(op: string, attributes = {}, ...others: string[]) {
  return {
    nodes: (to: string) => [node(op, ['x', ...others], [to], attributes)],
    isLong: true,
  };
}

const longModel = fc.record({
  kinds: fc.array(fc.constantFrom(...Object.keys(KINDS)), { minLength: 1, maxLength: 2 }),
  /** By the definition, by the model's own files, or by nobody: then lengths share no batch. */
  declares: fc.constantFrom('definition' as const, 'files' as const, 'nobody' as const),
  padWith: fc.constantFrom(undefined, undefined, -Infinity, Infinity, 1),
  batchSize: fc.constantFrom<number | number[]>(1, 2, 3, 4, [2, 4]),
  warmUp: fc.constantFrom(undefined, [1, -2, 4, 3]),
  calls: fc.array(fc.array(fc.integer({ min: -9, max: 9 }), { minLength: 1, maxLength: 6 }), {
    minLength: 1,
    maxLength: 7,
  }),
});

type LongModel = typeof longModel extends fc.Arbitrary<infer T> ? T : never;

async function play({ kinds, declares, padWith, batchSize, warmUp, calls }: LongModel) {
  const outputs = kinds.map((kind, i) => ({ name: `y${i}`, ...KINDS[kind]! }));
  const x = value('float32', 'batch', 'length');
  const file = onnxModel({
    inputs: { x, mask: x },
    outputs: Object.fromEntries(
      outputs.map(({ name, isLong }) => [name, isLong ? x : value('float32', 'batch', 1)]),
    ),
    nodes: outputs.flatMap(({ name, nodes }) => [...nodes(name)]),
    initializers: { ...initializers, end: whole(2 ** 31) },
  });
  const axes: { inputs: DeclaredAxes; outputs: DeclaredAxes } = {
    inputs: {
      x: { variableAxis: 1, ...(padWith !== undefined && { padWith }) },
      mask: { variableAxis: 1 },
    },
    outputs: Object.fromEntries(
      outputs.flatMap(({ name, isLong }) => (isLong ? [[name, { variableAxis: 1 }]] : [])),
    ),
  };
  const ofFiles = { name: 'long', fetch: async () => ({ file, accept: () => axes }) };
  const serving = createServing<Tensors, Tensors, Tensors, unknown>({
    name: 'net',
    batchSize,
    warmUp: warmUp ? [rowOf(warmUp)] : [],
    model: {
      file: declares === 'files' ? ofFiles : file,
      isolation: 'none',
      ...(declares === 'definition' && axes),
    },
  });
  const rows = calls.map((numbers) => ({ row: rowOf(numbers), alone: rowOf(numbers) }));
  return refusedOrAlone(serving, file, rows);
}

const tensor = (values: readonly number[]) => new Tensor('float32', values, [1, values.length]);

function rowOf(numbers: readonly number[]): Tensors {
  return { x: tensor(numbers), mask: tensor(numbers.map(() => 1)) };
}

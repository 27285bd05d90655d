import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { createServing, Tensor } from 'nestjs-serving';
import type { DeclaredAxes } from '../../../lib/doors/models.js';
import { value } from '../../fixtures/models/models.js';
import {
  node,
  type OnnxModel,
  onnxModel,
  type OnnxTensor,
  type OnnxValue,
} from '../../fixtures/models/onnx-writer.js';
import { refusedOrAlone, type Tensors } from '../../fixtures/models/rows-alone.js';

/**
 * Random ONNX models whose outputs are odd: of other names and ranks, of fixed sizes, without rows,
 * with rows on another axis, with rows that read each other or their padding, and sequences. A start
 * refuses a model in words, or each caller gets exactly what onnxruntime gives its row alone.
 */
describe('A model with odd outputs', () => {
  it('[FR2] [FR6] is refused at the start, or gives each row its answer alone, in any batch', async () => {
    const ends = { refused: 0, answered: 0, unchecked: 0 };
    await fc.assert(
      fc.asyncProperty(oddModel, async (odd) => {
        ends[await play(odd)]++;
      }),
      { numRuns: RUNS },
    );
    expect(Math.min(ends.refused, ends.answered)).toBeGreaterThan(RUNS / 10);
  });
});

/** With SEED other cases, and more of them. */
const RUNS = process.env['SEED'] === undefined ? 120 : 1000;

const WIDTH = 3;

/** How an output follows from `x`, which is [batch, WIDTH]. */
interface Kind {
  /** From `x` to the output `to`; inner values have `to` in their names. */
  readonly nodes: (to: string) => OnnxModel['nodes'];
  /** The output's axes, of which `rows` counts rows. */
  readonly dims: (rows: number | string) => OnnxValue['dims'];
  readonly type?: OnnxValue['type'];
  readonly isSequence?: true;
  /** The axis that counts rows; undefined if a model with it must not start. */
  readonly rowsOn?: number | null;
}

const whole = (...values: number[]): OnnxTensor => ({
  type: 'int64',
  dims: [values.length],
  data: BigInt64Array.from(values, BigInt),
});

const initializers = {
  zero: whole(0),
  one: whole(1),
  two: whole(2),
  back: whole(-1),
  first: whole(-(2 ** 31)),
  scalarZero: { ...whole(0), dims: [] },
  scalarOne: { ...whole(1), dims: [] },
  oneRow: whole(1, WIDTH),
  twoRows: whole(2, WIDTH),
  anyRows: whole(-1, WIDTH),
  constants: { type: 'float32', dims: [2, WIDTH], data: Float32Array.of(1, 2, 3, 4, 5, 6) },
} satisfies OnnxModel['initializers'];

const single = (op: string, attributes = {}, ...others: string[]) => ({
  nodes: (to: string) => [node(op, ['x', ...others], [to], attributes)],
});
const perRow = (rows: number | string) => [rows, WIDTH];
const alongBatch = { dims: perRow };

const KINDS = {
  same: { ...single('Identity'), dims: perRow, rowsOn: 0 },
  halved: { ...single('Softmax', { axis: 1 }), dims: perRow, rowsOn: 0 },
  counted: {
    ...single('ArgMax', { axis: 1, keepdims: 0 }),
    dims: (rows) => [rows],
    type: 'int64',
    rowsOn: 0,
  },
  summed: { ...single('ReduceSum', { keepdims: 1 }, 'one'), dims: (rows) => [rows, 1], rowsOn: 0 },
  deeper: { ...single('Unsqueeze', {}, 'one'), dims: (rows) => [rows, 1, WIDTH], rowsOn: 0 },
  turned: { ...single('Transpose'), dims: (rows) => [WIDTH, rows], rowsOn: 1 },
  'in front': { ...single('Unsqueeze', {}, 'zero'), dims: (rows) => [1, rows, WIDTH], rowsOn: 1 },
  shaped: { ...single('Reshape', {}, 'anyRows'), dims: perRow, rowsOn: 0 },
  constant: {
    nodes: (to) => [node('Identity', ['constants'], [to])],
    dims: () => [2, WIDTH],
    rowsOn: null,
  },
  'of one row': { ...single('Reshape', {}, 'oneRow'), dims: perRow, rowsOn: 0 },
  'of two rows': { ...single('Reshape', {}, 'twoRows'), dims: perRow },
  centred: {
    nodes: (to) => [
      node('ReduceMean', ['x'], [`${to} mean`], { axes: [0] }),
      node('Sub', ['x', `${to} mean`], [to]),
    ],
    ...alongBatch,
  },
  cumulative: { ...single('CumSum', {}, 'scalarZero'), ...alongBatch },
  'in reverse': { ...single('Slice', {}, 'back', 'first', 'zero', 'back'), ...alongBatch },
  'shared out': { ...single('Softmax', { axis: 0 }), ...alongBatch },
  mean: { ...single('ReduceMean', { axes: [0], keepdims: 0 }), dims: () => [WIDTH] },
  total: { ...single('ReduceMean', { keepdims: 0 }), dims: () => [] },
  size: { ...single('Shape'), dims: () => [2], type: 'int64' },
  findings: {
    nodes: (to) => [
      node('Relu', ['x'], [`${to} positive`]),
      node('NonZero', [`${to} positive`], [`${to} found`]),
      node('Transpose', [`${to} found`], [to]),
    ],
    dims: (rows) => [rows, 2],
    type: 'int64',
  },
  list: { ...single('SequenceConstruct'), ...alongBatch, isSequence: true },
} satisfies Record<string, Kind> as Readonly<Record<string, Kind>>;

const output = fc.record({
  kind: fc.constantFrom(...Object.keys(KINDS)),
  /** The name of the axis that counts its rows, if that is not the inputs'. */
  rows: fc.constantFrom(undefined, undefined, 'num_dets', '', 1, 2),
  isFetched: fc.boolean(),
  /** Declared with the axis that it has, with axis 0, or without rows. */
  declared: fc.constantFrom(undefined, undefined, undefined, 'right' as const, 0, null),
});

const oddModel = fc.record({
  rows: fc.constantFrom<number | string>('batch', 'batch', 'N', '', 1, 2),
  outputs: fc.array(output, { minLength: 1, maxLength: 3 }),
  declaredInput: fc.constantFrom(undefined, undefined, 0, null),
  fetches: fc.boolean(),
  batchSize: fc.constantFrom<number | number[]>(1, 2, 3, 4, [2, 4]),
  warmsUp: fc.boolean(),
  calls: fc.array(fc.array(fc.integer({ min: -9, max: 9 }), { minLength: 3, maxLength: 3 }), {
    minLength: 1,
    maxLength: 7,
  }),
});

type OddModel = typeof oddModel extends fc.Arbitrary<infer T> ? T : never;

function fileOf({ rows, outputs }: OddModel): Uint8Array {
  const kinds = outputs.map(({ kind }) => KINDS[kind]!);
  return onnxModel({
    inputs: { x: value('float32', rows, WIDTH) },
    outputs: Object.fromEntries(
      kinds.map(({ dims, type = 'float32', isSequence }, i) => [
        `y${i}`,
        { type, dims: dims(outputs[i]!.rows ?? rows), ...(isSequence && { isSequence }) },
      ]),
    ),
    nodes: kinds.flatMap(({ nodes }, i) => [...nodes(`y${i}`)]),
    initializers,
  });
}

function declarationsOf({ outputs }: OddModel): DeclaredAxes {
  const declared = outputs.flatMap(({ kind, declared: axis }, i) => {
    const batchAxis = axis === 'right' ? KINDS[kind]!.rowsOn : axis;
    return batchAxis === undefined ? [] : [[`y${i}`, { batchAxis }] as const];
  });
  return Object.fromEntries(declared);
}

/** The outcome of the start, and of all calls in as few batches as the limits allow. */
async function play(odd: OddModel): ReturnType<typeof refusedOrAlone> {
  const file = fileOf(odd);
  const { batchSize, declaredInput, warmsUp } = odd;
  const fetched = odd.outputs.flatMap(({ isFetched }, i) => (isFetched ? [`y${i}`] : []));
  const serving = createServing<Tensors, Tensors, Tensors, unknown>({
    name: 'net',
    batchSize,
    warmUp: warmsUp ? [{ x: rowOf([1, -2, 4]) }] : [],
    model: {
      file,
      isolation: 'none',
      ...(declaredInput !== undefined && { inputs: { x: { batchAxis: declaredInput } } }),
      outputs: declarationsOf(odd),
      ...(odd.fetches && fetched.length > 0 && { fetches: fetched }),
    },
  });
  // A run of a file with fixed rows has copies of the one row.
  const copies = typeof odd.rows === 'number' && declaredInput !== null ? odd.rows : 1;
  return refusedOrAlone(
    serving,
    file,
    odd.calls.map((numbers) => ({
      row: { x: rowOf(numbers) },
      alone: { x: rowOf(Array.from({ length: copies }, () => numbers).flat()) },
    })),
  );
}

function rowOf(numbers: readonly number[]): Tensor {
  return new Tensor('float32', Float32Array.from(numbers), [numbers.length / WIDTH, WIDTH]);
}

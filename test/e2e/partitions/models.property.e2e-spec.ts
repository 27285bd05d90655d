import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { InvalidServingError, type LocalServing, Tensor } from 'nestjs-serving';
import type { DeclaredAxes } from '../../../lib/core/partitions/model/model-signature.js';
import { type InferenceSession } from 'onnxruntime-common';
import { InferenceSession as Session } from 'onnxruntime-node';
import { feedOf } from '../../../lib/features/onnx/onnx-model.js';
import { value } from '../../fixtures/models/models.js';
import {
  type ElementType,
  node,
  type OnnxNode,
  type OnnxValue,
  onnxModel,
} from '../../fixtures/models/onnx-writer.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

/** A tensor of the type with these small numbers as elements. */
const makers: Readonly<Record<ElementType, (numbers: number[], dims: number[]) => Tensor>> = {
  float32: (numbers, dims) => new Tensor('float32', Float32Array.from(numbers), dims),
  float64: (numbers, dims) => new Tensor('float64', Float64Array.from(numbers), dims),
  float16: (numbers, dims) =>
    new Tensor(
      'float16',
      Uint16Array.from(numbers, (n) => [0, 0x3c00, 0x4000][n % 3]!),
      dims,
    ),
  int8: (numbers, dims) => new Tensor('int8', Int8Array.from(numbers), dims),
  uint8: (numbers, dims) => new Tensor('uint8', Uint8Array.from(numbers), dims),
  int16: (numbers, dims) => new Tensor('int16', Int16Array.from(numbers), dims),
  uint16: (numbers, dims) => new Tensor('uint16', Uint16Array.from(numbers), dims),
  int32: (numbers, dims) => new Tensor('int32', Int32Array.from(numbers), dims),
  uint32: (numbers, dims) => new Tensor('uint32', Uint32Array.from(numbers), dims),
  int64: (numbers, dims) => new Tensor('int64', BigInt64Array.from(numbers, BigInt), dims),
  uint64: (numbers, dims) => new Tensor('uint64', BigUint64Array.from(numbers, BigInt), dims),
  bool: (numbers, dims) =>
    new Tensor(
      'bool',
      Uint8Array.from(numbers, (n) => n % 2),
      dims,
    ),
  string: (numbers, dims) => new Tensor('string', numbers.map(String), dims),
};
const types = Object.keys(makers) as ElementType[];
const numeric: readonly ElementType[] = ['float32', 'float64', 'int32', 'int64'];
const fractional: readonly ElementType[] = ['float32', 'float64'];

/** The rows of a run: any number, exactly this number, or none when each call is one run. */
type Rows = 'any' | 'none' | number;

/** A model, the properties of its rows, and the seeds of its calls. */
interface Sample {
  readonly type: ElementType;
  readonly rows: Rows;
  /** The lengths of the axes beside the batch axis; 0 for a dynamic one. */
  readonly inner: readonly number[];
  readonly axis: number;
  /** Whether dynamic axes have names. */
  readonly isNamed: boolean;
  /** Whether the model has a second input with rows, and one that the rows share. */
  readonly hasState: boolean;
  readonly hasShared: boolean;
  readonly seeds: readonly number[];
  readonly isolation: 'thread' | 'none';
}

const samples: fc.Arbitrary<Sample> = fc
  .record({
    type: fc.constantFrom(...types),
    rows: fc.constantFrom<Rows>('any', 'none', 1, 2, 3),
    inner: fc.array(fc.constantFrom(0, 1, 2, 3), { maxLength: 3 }),
    axis: fc.constantFrom(0, 0, 1, 2),
    isNamed: fc.boolean(),
    hasState: fc.boolean(),
    hasShared: fc.boolean(),
    seeds: fc.array(fc.nat(1000), { minLength: 5, maxLength: 8 }),
    isolation: fc.constantFrom('thread', 'none'),
  })
  .map((sample) => ({ ...sample, axis: Math.min(sample.axis, sample.inner.length) }));

/**
 * The declared dims of the first input. A model without rows has only inner axes, possibly none.
 */
function dimsOf({ rows, inner, axis, isNamed }: Sample): OnnxValue['dims'] {
  const dims = inner.map((length, i) => length || (isNamed ? `inner${i}` : ''));
  return rows === 'none'
    ? dims
    : dims.toSpliced(axis, 0, rows === 'any' ? (isNamed ? 'batch' : '') : rows);
}

/** The ports of the state have their rows on axis 1. */
function stateDims({ rows, isNamed }: Sample): OnnxValue['dims'] {
  return [2, rows === 'any' ? (isNamed ? 'batch' : '') : rows];
}

/** Each row by itself, or without rows all elements of a call together. */
function modelOf(sample: Sample): Uint8Array {
  const { type, rows, axis, hasShared } = sample;
  const dims = dimsOf(sample);
  const inputs: Record<string, OnnxValue> = { x: value(type, ...dims) };
  const outputs: Record<string, OnnxValue> = { same: value(type, ...dims) };
  const nodes: OnnxNode[] = [node('Identity', ['x'], ['same'])];
  if (hasShared && numeric.includes(type)) {
    inputs['shared'] = value(type);
    outputs['sum'] = value(type, ...dims);
    nodes.push(node('Add', ['x', 'shared'], ['sum']));
  }
  if (hasState(sample)) {
    inputs['state'] = value(type, ...stateDims(sample));
    outputs['next'] = value(type, ...stateDims(sample));
    nodes.push(node('Identity', ['state'], ['next']));
  }
  const others = dims.map((_, i) => i).filter((i) => rows === 'none' || i !== axis);
  if (others.length > 0 && fractional.includes(type)) {
    outputs['mean'] = value(type, ...dims.map((dim, i) => (others.includes(i) ? 1 : dim)));
    outputs['share'] = value(type, ...dims);
    nodes.push(
      node('ReduceMean', ['x'], ['mean'], { axes: others }),
      node('Softmax', ['x'], ['share'], { axis: others[0]! }),
    );
  }
  return onnxModel({ inputs, outputs, nodes });
}

function hasState({ hasState: wanted, rows }: Sample): boolean {
  return wanted && rows !== 'none';
}

/** The inputs of a call. The seed determines the number of rows and the length of dynamic axes. */
function feedsOf(sample: Sample, seed: number): Record<string, Tensor> {
  const { type, rows, inner, axis } = sample;
  const count = rows === 'none' ? 1 : 1 + (seed % 4);
  const lengths = inner.map((length, i) => length || 1 + ((seed >> i) % 2));
  const dims = rows === 'none' ? lengths : lengths.toSpliced(axis, 0, count);
  const make = (...shape: number[]): Tensor => {
    const numbers = Array.from(
      { length: shape.reduce((a, b) => a * b, 1) },
      (_, i) => (seed * 7 + i * 3) % 5,
    );
    return makers[type](numbers, shape);
  };
  return {
    x: make(...dims),
    ...(sample.hasShared && numeric.includes(type) && { shared: makers[type]([seed % 2], []) }),
    ...(hasState(sample) && { state: make(2, count) }),
  };
}

function bitsOf(feeds: Record<string, Tensor>): Record<string, Tensor> {
  return Object.fromEntries(Object.entries(feeds).map(([name, tensor]) => [name, feedOf(tensor)]));
}

/** The declarations that the model needs. */
function axesOf(sample: Sample): { inputs: DeclaredAxes; outputs: DeclaredAxes } {
  const own = { batchAxis: sample.rows === 'none' ? null : sample.axis };
  const [shared, state] = [{ batchAxis: null }, { batchAxis: 1 }];
  const fractions = sample.inner.length > 0 && fractional.includes(sample.type);
  const isShared = sample.hasShared && numeric.includes(sample.type);
  return {
    inputs: { x: own, ...(isShared && { shared }), ...(hasState(sample) && { state }) },
    outputs: {
      same: own,
      ...(isShared && { sum: own }),
      ...(hasState(sample) && { next: state }),
      ...(fractions && { mean: own, share: own }),
    },
  };
}

/**
 * By convention a dynamic first axis counts rows, and a first axis of 1 counts one. Other files
 * need a declaration.
 */
function needsDeclaration({ rows, inner, axis }: Sample): boolean {
  const first = rows === 'none' || axis > 0 ? inner[0] : undefined;
  return first === 0 || (first === 1 && rows !== 'none');
}

describe('Models of every shape and element type', () => {
  const serve = useServings();

  it('[W1] [5.8] Each of several concurrent calls gets what the session outputs for it alone, or the model is refused at boot', async () => {
    let refusals = 0;
    const check = async (sample: Sample): Promise<void> => {
      const model = modelOf(sample);
      const calls = sample.seeds.map((seed) => feedsOf(sample, seed));
      // Rows of a fixed batch cannot run alone. Those of its dynamic twin can.
      const twin = typeof sample.rows === 'number' ? modelOf({ ...sample, rows: 'any' }) : model;
      const session = await Session.create(twin, { logSeverityLevel: 4 });
      const alone = await Promise.all(calls.map((feeds) => session.run(bitsOf(feeds))));
      await session.release();
      const definition = {
        name: 'model',
        model: {
          file: model,
          session: { logSeverityLevel: 4 } as const,
          isolation: sample.isolation,
        },
        batchSize: 6,
      };

      const declared = { ...definition, model: { ...definition.model, ...axesOf(sample) } };
      await compare(await serve(declared), calls, alone);
      if (!needsDeclaration(sample)) {
        const serving = await serve(definition).catch((error: unknown) => error as Error);
        if (serving instanceof Error) {
          expect(serving).toBeInstanceOf(InvalidServingError);
          expect(serving.message).toContain('batchAxis: ');
          refusals++;
        } else {
          // The file of a one-row model may show that its rows cannot be separated. Calls with
          // several rows are then refused.
          const taken =
            sample.rows === 1
              ? calls.map((_, i) => i).filter((i) => rowsIn(calls[i]!, sample) === 1)
              : calls.keys();
          const indices = [...taken];
          await compare(
            serving,
            indices.map((i) => calls[i]!),
            indices.map((i) => alone[i]!),
          );
        }
      }
    };

    await fc.assert(fc.asyncProperty(samples, check), { numRuns: 60 });

    expect(refusals).toBeGreaterThan(5);
  });
});

function rowsIn({ x }: Record<string, Tensor>, { axis }: Sample): number {
  return x!.dims[axis]!;
}

async function compare(
  serving: LocalServing,
  calls: readonly Record<string, Tensor>[],
  alone: readonly InferenceSession.OnnxValueMapType[],
): Promise<void> {
  const replies = await Promise.all(calls.map((feeds) => serving.batchedRun(feeds)));
  const inline = await Promise.all(calls.slice(0, 1).map((feeds) => serving.run(feeds)));
  await serving.close();
  expect(replies.map(readable)).toEqual(alone.map(readable));
  expect(inline.map(readable)).toEqual(alone.slice(0, 1).map(readable));
}

/** Five decimals, since the result of a sum depends on its order. */
function readable(output: unknown): unknown {
  const byName = Object.entries(output as Record<string, Tensor>).toSorted(([a], [b]) =>
    a < b ? -1 : 1,
  );
  return byName.map(([name, { type, dims, data }]) => {
    const elements = Array.from(data as Iterable<unknown>, (element) =>
      typeof element === 'number' && !Number.isInteger(element) ? element.toFixed(5) : element,
    );
    return { name, type, dims: [...dims], elements };
  });
}

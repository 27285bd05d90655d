import { Tensor, InvalidInputError } from '../../../index.js';
import { zerosOf } from '../../../doors/values.js';

export interface SampledInput {
  readonly name: string;
  readonly type: Tensor.Type;
  /** Numbers are fixed, others variable. */
  readonly shape: readonly (number | string | null)[];
  readonly batchAxis: number | null;
}

/** Sizes of a model's open axes: `{ tokens: [1, 128] }`. */
export type GivenShapes = Readonly<Record<string, readonly number[]>>;

/**
 * Measurements depend on the rows' size, not their meaning.
 *
 * @throws InvalidInputError for an open axis without a given shape
 */
export function sampleRows(
  inputs: readonly SampledInput[],
  rows: number,
  shapes: GivenShapes,
  text = 'a sample of text',
): Readonly<Record<string, Tensor>> {
  const unknown = Object.keys(shapes).find((name) => !inputs.some((input) => input.name === name));
  if (unknown !== undefined) {
    throw new InvalidInputError(
      `There is no input "${unknown}"; the inputs are ${inputs.map(({ name }) => name).join(', ')}`,
    );
  }
  return Object.fromEntries(
    inputs.map((input) => [input.name, sampleOf(input.type, shapeOf(input, rows, shapes), text)]),
  );
}

function shapeOf(
  { name, shape, batchAxis }: SampledInput,
  rows: number,
  shapes: GivenShapes,
): number[] {
  const given = shapes[name];
  if (given && given.length !== shape.length) {
    throw new InvalidInputError(
      `The shape ${given.join('x')} of "${name}" has ${given.length} axes; the input has ${shape.length}`,
    );
  }
  return shape.map((size, axis) => {
    const wanted = given?.[axis];
    if (axis === batchAxis) {
      return wanted === undefined || wanted === 1 || wanted === rows
        ? rows
        : fail(
            `Axis ${axis} of the input "${name}" counts rows, not ${wanted}; write 1, and --rows ${wanted}`,
          );
    }
    if (typeof size === 'number' && wanted !== undefined && wanted !== size) {
      fail(`Axis ${axis} of the input "${name}" has the size ${size}, not ${wanted}`);
    }
    if (typeof size === 'number') {
      return size;
    }
    return (
      wanted ??
      fail(
        `Axis ${axis} of the input "${name}" has no fixed size; give the shape of its tensor: ` +
          `--shape ${name}=${shape.map((each, i) => (i === batchAxis ? 1 : typeof each === 'number' ? each : '?')).join('x')}`,
      )
    );
  });
}

function fail(message: string): never {
  throw new InvalidInputError(message);
}

function sampleOf(type: Tensor.Type, dims: readonly number[], text: string): Tensor {
  const data = zerosOf(type, dims);
  if (Array.isArray(data)) {
    return new Tensor('string', data.fill(text), dims);
  }
  const isFraction = type === 'float32' || type === 'float64';
  const isBig = type === 'int64' || type === 'uint64';
  const elements = data as { [i: number]: number | bigint; readonly length: number };
  for (let i = 0; i < elements.length; i++) {
    const small = i % 2;
    elements[i] = isFraction ? Math.random() : isBig ? BigInt(small) : small;
  }
  return new Tensor(type, data, dims);
}

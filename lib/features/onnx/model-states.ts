import { Batch } from '../../core/batch/batch.js';
import { asOutput } from '../../core/batch/container.js';
import type { BatchAxes } from '../../core/batch/template.js';
import { type Tensor, zeroTensor } from '../../core/batch/tensor.js';
import { InvalidOutputError, InvalidServingError } from '../../core/errors.js';
import { countOfRows } from '../../core/format.js';
import { feedsOf } from '../../core/partitions/model/model-io.js';
import {
  type DeclaredPorts,
  describePort,
  type FileSignature,
  type ModelPort,
  type ModelSignature,
} from '../../core/partitions/model/model-signature.js';
import { RowStates, type StateRows, type StateStep } from '../../core/partitions/row-states.js';

type Named<T> = Readonly<Record<string, T>>;

export class ModelStates {
  readonly inputs: readonly ModelPort[];
  readonly outputs: readonly string[];
  private readonly kept = new RowStates<Batch>();
  private readonly axes: BatchAxes;
  /** Zeros. */
  private readonly first: Batch;
  private readonly counted: { readonly index: number; readonly axis: number };

  constructor({ inputs, states }: Pick<ModelSignature, 'inputs' | 'states'>) {
    this.inputs = states.map(({ input }) => input);
    this.outputs = states.map(({ output }) => output);
    this.axes = Object.fromEntries(this.inputs.map(({ name, batchAxis }) => [name, batchAxis]));
    this.first = Batch.ofContainer(
      Object.fromEntries(
        this.inputs.map(({ name, type, shape, batchAxis }) => {
          const dims = shape.map((dim, axis) => (axis === batchAxis ? 1 : (dim as number)));
          return [name, zeroTensor(type, dims)];
        }),
      ),
      this.axes,
    );
    const index = inputs.findIndex(({ batchAxis }) => batchAxis !== null);
    this.counted = { index, axis: inputs[index]?.batchAxis ?? 0 };
  }

  /** Rows without a turn get zeros. */
  begin(turns: StateRows | undefined, feeds: readonly Tensor[]): ModelStep {
    const { first, inputs, counted } = this;
    const rows = feeds[counted.index]?.dims[counted.axis] ?? 1;
    const step = turns && this.kept.begin(turns);
    const states = Array.from({ length: rows }, (_, row) => step?.states[row] ?? first);
    return {
      feeds: feedsOf(Batch.merge(states).gather(), inputs),
      keep: (outputs) => this.keep(step, outputs),
    };
  }

  end(ids: readonly number[]): void {
    this.kept.end(ids);
  }

  private keep(step: StateStep<Batch> | undefined, outputs: Named<Tensor>): void {
    if (!step) {
      return;
    }
    const { inputs, first, axes } = this;
    const states = inputs.map(({ name }, i) => [name, outputs[this.outputs[i]!]!] as const);
    const rows = asOutput(() => Batch.ofOutput(Object.fromEntries(states), axes));
    if (rows.signature !== first.signature || rows.size < step.states.length) {
      throw new InvalidOutputError(
        `The state of ${countOfRows(step.states.length)} after a run is ${rows.size} rows of ` +
          `[${rows.signature}]; the model takes rows of [${first.signature}]`,
      );
    }
    // A view would keep the whole batch's states in memory.
    const own = step.states.map((_, row) => rows.slice(row, row + 1).copy());
    step.keep(own, () => true);
  }
}

interface ModelStep {
  readonly feeds: readonly Tensor[];
  keep(outputs: Named<Tensor>): void;
}

/** @throws InvalidServingError if an input and its output can't share a state */
export function withoutStates(
  file: FileSignature,
  { state = {} }: Pick<DeclaredPorts, 'state'>,
): Omit<ModelSignature, 'dynamicallyQuantised'> {
  const states = Object.entries(state).map(([name, output]) => {
    const input = portNamed('input', name, file.inputs);
    checkState(input, portNamed('output', output, file.outputs));
    return { input, output };
  });
  const inputs = file.inputs.filter(({ name }) => !Object.hasOwn(state, name));
  if (inputs.length === 0 || file.fetches.length === 0) {
    throw new InvalidServingError(
      'All inputs or all outputs of the model are states, so that a step has no input or no result',
    );
  }
  return { ...file, inputs, states };
}

function portNamed(kind: string, name: string, ports: readonly ModelPort[]): ModelPort {
  const port = ports.find((each) => each.name === name);
  if (!port) {
    throw new InvalidServingError(
      `model.state names the ${kind} "${name}"; the model has ${ports.map((each) => each.name).join(', ')}`,
    );
  }
  return port;
}

function checkState(input: ModelPort, output: ModelPort): void {
  const names = `the input ${describePort(input)} and the output ${describePort(output)}`;
  if (input.batchAxis === null) {
    throw new InvalidServingError(
      `The input ${describePort(input)} is a state, and none of its axes counts rows; declare it: ` +
        'inputs: { name: { batchAxis: ... } }',
    );
  }
  const open = input.shape.findIndex(
    (dim, axis) => axis !== input.batchAxis && typeof dim !== 'number',
  );
  if (open >= 0) {
    throw new InvalidServingError(
      `The input ${describePort(input)} is a state, and axis ${open} may have any size; states ` +
        'begin as zeros of one size',
    );
  }
  const isAlike = (dim: number | string, axis: number): boolean =>
    axis === input.batchAxis || typeof dim !== 'number' || dim === input.shape[axis];
  if (
    input.type !== output.type ||
    input.shape.length !== output.shape.length ||
    !output.shape.every(isAlike)
  ) {
    throw new InvalidServingError(`model.state joins ${names}, which differ in type or shape`);
  }
}

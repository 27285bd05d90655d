import { Batch } from '../../batch/batch.js';
import type { BatchAxes } from '../../batch/template.js';
import { type Tensor, zeroTensor } from '../../batch/tensor.js';
import { InvalidOutputError } from '../../errors.js';
import { type SessionRows, SessionStates, type SessionStep } from '../session-states.js';
import { feedsOf } from './model-ports.js';
import type { ModelPort, ModelSignature } from './model-signature.js';

type Named<T> = Readonly<Record<string, T>>;

/** The states of sessions with a model: some outputs of a run are inputs of the next. */
export class ModelStates {
  /** The inputs that take the states. */
  readonly inputs: readonly ModelPort[];
  /** The outputs that give them. */
  readonly outputs: readonly string[];
  private readonly sessions = new SessionStates<Batch>();
  private readonly axes: BatchAxes;
  /** The state before the first step of a session: zeros. */
  private readonly first: Batch;
  /** An input with rows, and their axis: its length is the number of rows of a run. */
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

  /** Begins a step of these sessions with the other inputs; rows without a session get zeros. */
  begin(sessions: SessionRows | undefined, feeds: readonly Tensor[]): ModelStep {
    const { first, inputs, counted } = this;
    const rows = feeds[counted.index]?.dims[counted.axis] ?? 1;
    const step = sessions && this.sessions.begin(sessions);
    const states = Array.from({ length: rows }, (_, row) => step?.states[row] ?? first);
    return {
      feeds: feedsOf(Batch.merge(states).gather(), inputs),
      keep: (outputs) => this.keep(step, outputs),
    };
  }

  end(ids: readonly number[]): void {
    this.sessions.end(ids);
  }

  private keep(step: SessionStep<Batch> | undefined, outputs: Named<Tensor>): void {
    if (!step) {
      return;
    }
    const { inputs, first, axes } = this;
    const states = inputs.map(({ name }, i) => [name, outputs[this.outputs[i]!]!] as const);
    const rows = Batch.ofOutput(Object.fromEntries(states), axes);
    if (rows.signature !== first.signature || rows.size < step.states.length) {
      throw new InvalidOutputError(
        `The state of ${step.states.length} sessions after a run is ${rows.size} rows of ` +
          `[${rows.signature}]; the model takes rows of [${first.signature}]`,
      );
    }
    // A copy, since a view would keep the states of the whole batch in memory.
    const own = step.states.map((_, row) => rows.slice(row, row + 1).copy());
    step.keep(own, () => true);
  }
}

/** The states of one run. */
interface ModelStep {
  /** In the order of the inputs. */
  readonly feeds: readonly Tensor[];
  /** Keeps the states that the run gave. */
  keep(outputs: Named<Tensor>): void;
}

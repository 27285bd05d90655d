import { countOfRows } from '../../format.js';
import type { InferenceSession } from 'onnxruntime-common';
import { Tensor } from '../../batch/tensor.js';
import { InvalidOutputError, ServingLoadError } from '../../errors.js';
import { sessionOf } from './model-content.js';
import { feedsOf, ModelReply, ModelStates, withoutStates } from './model-io.js';
import { axesOf, type ModelSignature, signatureOf } from './model-signature.js';
import { createSession, providersOf } from './onnx-session.js';
import { withVariableAxes } from './variable-axes.js';
import { endInTurn, inTurn } from './webgpu-turn.js';
import type { StateRows } from '../row-states.js';
import type { Loaded, ModelTask, SessionProviders } from '../worker/worker-protocol.js';
import { Batch } from '../../batch/batch.js';
import { asOutput } from '../../batch/container.js';
import type { BatchAxes } from '../../batch/template.js';

export class OnnxModel {
  readonly reply: ModelReply;
  private readonly states: ModelStates | undefined;

  constructor(
    private readonly session: RunModel,
    readonly loaded: Required<Loaded>,
    readonly close: () => Promise<void>,
  ) {
    this.reply = new ModelReply(loaded.signature);
    this.states =
      loaded.signature.states.length > 0 ? new ModelStates(loaded.signature) : undefined;
  }

  /**
   * Takes tensors in the inputs' order, returns the reply's, and passes hooks' outputs to `onHook`.
   * With turns, each row is a step from its state.
   */
  async run(
    feeds: readonly Tensor[],
    hooks: readonly string[],
    onHook: (name: string, value: unknown) => void,
    turns?: StateRows,
  ): Promise<Tensor[]> {
    const { states } = this;
    const { names } = this.reply;
    const others = states ? [...hooks, ...states.outputs] : hooks;
    const all = others.length === 0 ? names : [...new Set([...names, ...others])];
    const step = states?.begin(turns, feeds);
    const outputs = await this.session(step ? [...feeds, ...step.feeds] : feeds, all);
    step?.keep(outputs);
    hooks.forEach((hook) => onHook(hook, outputs[hook]));
    return names.map((name) => outputs[name]!);
  }

  forget(ids: readonly number[]): void {
    this.states?.end(ids);
  }
}

/** `milliseconds` is how long the run blocked the thread. */
type OnRun = (rows: number, milliseconds: number) => void;

export async function openModel(task: ModelTask, onRun?: OnRun): Promise<OnnxModel> {
  const runtime = await loadRuntime();
  const exclusively = exclusivelyFor(task);
  const { session, providers } = await exclusively(() =>
    sessionOf(task.model, (model) => createSession(runtime, model, task.model.name, task.options)),
  );
  try {
    return modelOf(session, providers, task, exclusively, onRun);
  } catch (error) {
    await session.release();
    throw error;
  }
}

function modelOf(
  session: InferenceSession,
  providers: SessionProviders,
  task: ModelTask,
  exclusively: Exclusively,
  onRun: OnRun | undefined,
): OnnxModel {
  const signature = {
    ...withVariableAxes(withoutStates(signatureOf(session, task), task), task),
    dynamicallyQuantised: task.model.isDynamicallyQuantised,
  };
  const { fixedBatch, states, outputs } = signature;
  const inputs = [...signature.inputs, ...states.map(({ input }) => input)];
  const runWhole: RunModel = (feeds, names) =>
    session.run(Object.fromEntries(inputs.map(({ name }, i) => [name, feedOf(feeds[i]!)])), names);
  const runOnce = onRun ? measured(runWhole, signature, onRun) : runWhole;
  const runStep: RunStep = (rows, names) => runOnce(feedsOf(rows.gather(), inputs), names);
  const run =
    fixedBatch === undefined ? runOnce : inSteps(runStep, { inputs, outputs }, fixedBatch);
  return new OnnxModel(
    (feeds, names) => exclusively(() => run(feeds, names)),
    { signature, providers },
    () => session.release(),
  );
}

type Exclusively = <T>(work: () => Promise<T>) => Promise<T>;

/** WebGPU sessions take turns until their threads end; others run in parallel. */
function exclusivelyFor({ options, webgpuTurn }: ModelTask): Exclusively {
  if (!webgpuTurn || providersOf(options).every(({ name }) => name !== 'webgpu')) {
    return (work) => work();
  }
  const turn = new Int32Array(webgpuTurn);
  endInTurn(turn);
  return (work) => inTurn(turn, work);
}

async function loadRuntime(): Promise<typeof import('onnxruntime-node')> {
  try {
    // Not part of application bundles.
    return await import(/* webpackIgnore: true */ 'onnxruntime-node');
  } catch (cause) {
    throw new ServingLoadError(
      'onnxruntime-node, which runs ONNX models, cannot be loaded; install it: npm install ' +
        'onnxruntime-node',
      { cause },
    );
  }
}

function measured(run: RunModel, { inputs }: ModelSignature, onRun: OnRun): RunModel {
  const counted = inputs.findIndex(({ batchAxis }) => batchAxis !== null);
  const axis = inputs[counted]?.batchAxis ?? 0;
  return async (feeds, names) => {
    let begin: number | undefined;
    // onnxruntime-node does the whole run in the immediate after this one.
    setImmediate(() => (begin = performance.now()));
    const outputs = await run(feeds, names);
    if (begin !== undefined) {
      onRun(feeds[counted]?.dims[axis] ?? 1, performance.now() - begin);
    }
    return outputs;
  };
}

/**
 * Half floats as bits: onnxruntime-node can't read a Float16Array, which holds them from Node 24
 * on.
 */
export function feedOf(tensor: Tensor): Tensor {
  if (tensor.type !== 'float16') {
    return tensor;
  }
  const { buffer, byteOffset, length } = tensor.data as Uint16Array;
  const bits = new Uint16Array(buffer, byteOffset, length);
  // The constructor would convert the bits to a Float16Array.
  return Object.defineProperty(new Tensor('float16', bits, tensor.dims), 'data', { value: bits });
}

type Named<T> = Record<string, T>;

/** Takes inputs, then states. */
type RunModel = (feeds: readonly Tensor[], names: readonly string[]) => Promise<Named<Tensor>>;

/** Runs as many rows as the file fixes. */
export type RunStep = (rows: Batch, names: readonly string[]) => Promise<Named<Tensor>>;

/** Runs `size` rows at a time, and pads the last step. */
export function inSteps(
  run: RunStep,
  { inputs, outputs }: Pick<ModelSignature, 'inputs' | 'outputs'>,
  size: number,
): RunModel {
  const inputAxes = axesOf(inputs);
  const outputAxes = axesOf(outputs);
  return async (feeds, fetches) => {
    const rows = Object.fromEntries(inputs.map(({ name }, i) => [name, feeds[i]!]));
    const chunks = Batch.ofContainer(rows, inputAxes).chunksOf(size);
    const shared = fetches.find((name) => outputAxes[name] === null);
    if (shared !== undefined && chunks.length > 1) {
      throw new InvalidOutputError(
        `The output "${shared}" has no rows, and each of the ${chunks.length} steps of the batch ` +
          `gives another; set batchSize to ${size}, the rows of one step`,
      );
    }
    const steps: Batch[] = [];
    for (const chunk of chunks) {
      const output = await run(chunk.pad(size - chunk.size), fetches);
      steps.push(rowsOfStep(output, outputAxes, size).slice(0, chunk.size));
    }
    return asOutput(() => Batch.merge(steps)).release() as Named<Tensor>;
  };
}

function rowsOfStep(output: Named<Tensor>, axes: BatchAxes, size: number): Batch {
  const batch = asOutput(() => Batch.ofOutput(output, axes));
  if (batch.size !== size) {
    throw new InvalidOutputError(
      `A run of ${countOfRows(size)} gave ${batch.size}: ${batch.signature}; ` +
        'if the rows lie on another axis, declare it: outputs: { name: { batchAxis: ... } }',
    );
  }
  return batch;
}

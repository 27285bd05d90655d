import type { InferenceSession } from 'onnxruntime-common';
import { Tensor } from '../../core/batch/tensor.js';
import { ServingLoadError } from '../../core/errors.js';
import { type ModelContent, sessionOf } from './model-content.js';
import {
  feedsOf,
  inSteps,
  ModelReply,
  type RunModel,
  type RunStep,
} from '../../core/partitions/model/model-io.js';
import { ModelStates, withoutStates } from './model-states.js';
import {
  type DeclaredPorts,
  type ModelSignature,
  signatureOf,
} from '../../core/partitions/model/model-signature.js';
import { sessionAt, type SessionOfThread } from './native-session.js';
import {
  createSession,
  providersOf,
  refuseIgnored,
  refuseUnread,
  withShortSpin,
} from './onnx-session.js';
import type { PartitionOptions } from '../../core/partitions/batch-function.js';
import { withVariableAxes } from '../../core/partitions/model/variable-axes.js';
import { callNative, endInTurn, inTurn } from './native-calls.js';
import type { StateRows } from '../../core/partitions/row-states.js';
import type {
  Loaded,
  ModelTask,
  SessionProviders,
  TensorModel,
} from '../../core/partitions/worker/worker-protocol.js';

export interface OnnxTask extends ModelTask, DeclaredPorts {
  readonly model: ModelContent;
  readonly webgpuTurn?: SharedArrayBuffer;
}

export class OnnxModel implements TensorModel {
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

/** @param milliseconds how long the run blocked the thread */
type OnRun = (rows: number, milliseconds: number) => void;

export async function openModel(task: OnnxTask, onRun?: OnRun): Promise<OnnxModel> {
  refuseUnread(task.options);
  const { InferenceSession, listSupportedBackends } = await loadRuntime();
  const runtime = {
    offered: listSupportedBackends().map(({ name }) => name),
    complete: [],
    open: (...model: [content: string | Uint8Array, options?: InferenceSession.SessionOptions]) =>
      InferenceSession.create(...(model as [string])),
  };
  const exclusively = exclusivelyFor(task);
  const { session, providers } = await exclusively(() =>
    sessionOf(task.model, (model) => createSession(runtime, model, task.model.name, task.options)),
  );
  return modelOf(session, providers, task, exclusively, onRun);
}

/**
 * Session for the thread that calls.
 *
 * @param shared address of the application's session for all threads, see `openForThreads`
 * @throws an Error with the library's message
 */
export async function sessionForThread(
  model: string | Uint8Array,
  options: PartitionOptions,
  shared?: bigint,
): Promise<SessionOfThread> {
  if (shared !== undefined) {
    return sessionAt(shared);
  }
  refuseUnread(options);
  refuseIgnored(providersOf(options));
  const { InferenceSession } = await loadRuntime();
  const session = await callNative(() =>
    InferenceSession.create(model as string, withShortSpin(options)),
  );
  const { inputNames, outputNames, inputMetadata, outputMetadata } = session;
  return {
    inputNames,
    outputNames,
    inputMetadata,
    outputMetadata,
    run: (...run) => callNative(() => session.run(...(run as Parameters<typeof session.run>))),
  };
}

/** A session of onnxruntime-node, or a native one. */
export interface Session extends Pick<
  InferenceSession,
  'inputMetadata' | 'outputMetadata' | 'release'
> {
  run(
    feeds: Readonly<Record<string, Tensor>>,
    names: readonly string[],
  ): Promise<Record<string, Tensor>>;
}

/** Releases the session if it can't run the task. */
export async function modelOf(
  session: Session,
  providers: SessionProviders,
  task: OnnxTask,
  exclusively: Exclusively = (work) => work(),
  onRun?: OnRun,
): Promise<OnnxModel> {
  try {
    return modelOn(session, providers, task, exclusively, onRun);
  } catch (error) {
    await session.release();
    throw error;
  }
}

function modelOn(
  session: Session,
  providers: SessionProviders,
  task: OnnxTask,
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
    () => exclusively(() => session.release()),
  );
}

type Exclusively = <T>(work: () => Promise<T>) => Promise<T>;

/** WebGPU sessions take turns until their threads end; others run in parallel. */
function exclusivelyFor({ options, webgpuTurn }: OnnxTask): Exclusively {
  if (!webgpuTurn || providersOf(options).every(({ name }) => name !== 'webgpu')) {
    return callNative;
  }
  const turn = new Int32Array(webgpuTurn);
  endInTurn(turn);
  return (work) => inTurn(turn, () => callNative(work));
}

async function loadRuntime(): Promise<typeof import('onnxruntime-node')> {
  try {
    // Not part of application bundles.
    return await callNative(() => import(/* webpackIgnore: true */ 'onnxruntime-node'));
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

/** onnxruntime-node can't read a Float16Array, which holds half floats from Node 24 on. */
export function feedOf(tensor: Tensor): Tensor {
  if (tensor.type !== 'float16') {
    return tensor;
  }
  const { buffer, byteOffset, length } = tensor.data as Uint16Array;
  const bits = new Uint16Array(buffer, byteOffset, length);
  // The constructor would convert the bits to a Float16Array.
  return Object.defineProperty(new Tensor('float16', bits, tensor.dims), 'data', { value: bits });
}

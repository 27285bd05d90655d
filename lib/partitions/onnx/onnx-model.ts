import { Tensor } from '../../batch/tensor.js';
import { createReadStream } from 'node:fs';
import { Batch } from '../../batch/batch.js';
import { FlatContainer, type FlatRows } from '../../batch/container.js';
import type { BatchAxes } from '../../batch/template.js';
import { InvalidInputError, InvalidOutputError, ServingLoadError } from '../../errors.js';
import { type ModelContent, sessionOf } from './model-content.js';
import { axesOf, type ModelSignature, signatureOf, type ModelPort } from './model-signature.js';
import { createSession, providersOf } from './onnx-session.js';
import { endInTurn, inTurn } from './webgpu-turn.js';
import type { Loaded, WorkerTask } from '../worker/worker-protocol.js';
import type { RunRows } from '../partition.js';

type ModelTask = Extract<WorkerTask, { readonly model: ModelContent }>;
type Named<T> = Record<string, T>;

/** Loads an ONNX model: the function that runs its batches, and its properties. */
export async function openModel(task: ModelTask): Promise<[RunRows, Loaded]> {
  const runtime = await loadRuntime();
  const exclusively = exclusivelyFor(task);
  const { session, providers } = await exclusively(() =>
    sessionOf(task.model, (model) => createSession(runtime, model, task.model.name, task.options)),
  );
  // The first partition searches the file for all of them.
  const dynamicallyQuantised =
    task.partition === 0 && (await mentions(task.model, 'DynamicQuantizeLinear'));
  const signature = { ...signatureOf(session, task), dynamicallyQuantised };
  const { inputs, fetches, fixedBatch } = signature;
  const runWhole: RunModel = (rows, names) => session.run(feedsOf(rows, inputs), names);
  const run = fixedBatch === undefined ? runWhole : inSteps(runWhole, signature, fixedBatch);
  const runRows: RunRows = async (rows, { hooks }, listener) => {
    const names = [...new Set([...fetches, ...hooks])];
    const outputs = await exclusively(() => run(rows, names));
    hooks.forEach((hook) => listener.hook(hook, outputs[hook]));
    return { output: pick(outputs, fetches) };
  };
  return [runRows, { signature, providers }];
}

function pick<T>(from: Named<T>, names: readonly string[]): Named<T> {
  return Object.fromEntries(names.map((name) => [name, from[name]!]));
}

/** Sessions on WebGPU in one process take turns until their threads end; others run in parallel. */
function exclusivelyFor({
  options,
  webgpuTurn,
}: ModelTask): <T>(work: () => Promise<T>) => Promise<T> {
  if (!webgpuTurn || providersOf(options).every(({ name }) => name !== 'webgpu')) {
    return (work) => work();
  }
  const turn = new Int32Array(webgpuTurn);
  endInTurn(turn);
  return (work) => inTurn(turn, work);
}

async function loadRuntime(): Promise<typeof import('onnxruntime-node')> {
  try {
    return await import('onnxruntime-node');
  } catch (cause) {
    throw new ServingLoadError(
      'onnxruntime-node, which runs ONNX models, cannot be loaded; install it: npm install ' +
        'onnxruntime-node',
      { cause },
    );
  }
}

/** Whether the model contains the word. Reads the file as a stream: 100 MB take about 50 ms. */
async function mentions({ files, bytes }: ModelContent, word: string): Promise<boolean> {
  const [path] = files.keys();
  const pieces =
    bytes || path === undefined ? [bytes] : createReadStream(path, { highWaterMark: 1 << 20 });
  let tail = '';
  for await (const piece of pieces) {
    const { buffer, byteOffset, byteLength } = piece as Uint8Array;
    const text = Buffer.from(buffer, byteOffset, byteLength);
    if (text.includes(word) || (tail + text.toString('latin1', 0, word.length)).includes(word)) {
      return true;
    }
    tail = text.toString('latin1', Math.max(0, text.length - word.length));
  }
  return false;
}

/** Runs the model for these of its outputs. */
type RunModel = (rows: FlatRows, fetches: readonly string[]) => Promise<Named<Tensor>>;

/** For a model whose file fixes the batch: that many rows at a time, the last step padded. */
function inSteps(run: RunModel, { inputs, outputs }: ModelSignature, size: number): RunModel {
  const inputAxes = axesOf(inputs);
  const outputAxes = axesOf(outputs);
  return async (rows, fetches) => {
    const chunks = Batch.ofContainer(tensorsIn(rows), inputAxes).chunksOf(size);
    const shared = fetches.find((name) => outputAxes[name] === null);
    if (shared !== undefined && chunks.length > 1) {
      throw new InvalidOutputError(
        `The output "${shared}" has no rows, and each of the ${chunks.length} steps of the batch ` +
          `gives another; set batchSize to ${size}, the rows of one step`,
      );
    }
    const steps: Batch[] = [];
    for (const chunk of chunks) {
      const output = await run(chunk.pad(size - chunk.size).gather(), fetches);
      steps.push(rowsOfStep(output, outputAxes, size).slice(0, chunk.size));
    }
    return Batch.merge(steps).release() as Named<Tensor>;
  };
}

function rowsOfStep(output: Named<Tensor>, axes: BatchAxes, size: number): Batch {
  const batch = Batch.ofOutput(output, axes);
  if (batch.size !== size) {
    throw new InvalidOutputError(
      `A run of ${size} rows gave ${batch.size}: ${batch.signature}; ` +
        'if the rows lie on another axis, declare it: outputs: { name: { batchAxis: ... } }',
    );
  }
  return batch;
}

/** The rows by input name; a bare tensor is the one input of a model that has one. */
function feedsOf(rows: FlatRows, inputs: readonly ModelPort[]): Named<Tensor> {
  return Object.fromEntries(
    tensorsIn(rows).leaves.map(({ path, tensor }) => [
      path === '' ? inputs[0]!.name : path,
      feedOf(tensor),
    ]),
  );
}

function tensorsIn(rows: FlatRows): FlatContainer {
  if (rows instanceof FlatContainer) {
    return rows;
  }
  throw new InvalidInputError('A model runs tensors, and was given plain values');
}

/**
 * The tensor as onnxruntime-node reads it: half floats as their bits. It cannot read a
 * Float16Array, which holds them from Node 24 on.
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

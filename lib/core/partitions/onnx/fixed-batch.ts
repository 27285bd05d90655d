import type { Tensor } from 'onnxruntime-common';
import { Batch } from '../../batch/batch.js';
import type { BatchAxes } from '../../batch/template.js';
import { InvalidOutputError } from '../../errors.js';
import { axesOf, type ModelSignature } from './model-signature.js';

type Named<T> = Record<string, T>;

/** Runs tensors (inputs first, then states) and returns the named outputs. */
export type RunSession = (
  feeds: readonly Tensor[],
  names: readonly string[],
) => Promise<Named<Tensor>>;

/** Runs `size` rows and returns the named outputs. */
export type RunStep = (rows: Batch, names: readonly string[]) => Promise<Named<Tensor>>;

/** For a file with a fixed batch size: runs `size` rows at a time and pads the last step. */
export function inSteps(
  run: RunStep,
  { inputs, outputs }: Pick<ModelSignature, 'inputs' | 'outputs'>,
  size: number,
): RunSession {
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

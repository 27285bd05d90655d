import { Batch } from '../../batch/batch.js';
import {
  asOutput,
  type Container,
  FlatContainer,
  type FlatRows,
  flatten,
  type Leaf,
} from '../../batch/container.js';
import { Tensor, zerosOf } from '../../batch/tensor.js';
import type { BatchAxes } from '../../batch/template.js';
import { InvalidInputError, InvalidOutputError } from '../../errors.js';
import { countOfRows } from '../../format.js';
import { axesOf, type ModelPort, type ModelSignature } from './model-signature.js';

export function feedsOf(rows: FlatRows, inputs: readonly ModelPort[]): Tensor[] {
  const leaves = rows instanceof FlatContainer ? rows.leaves : undefined;
  return inputsAmong(leaves, inputs).map(({ tensor }) => tensor);
}

/** A single leaf is the only input, whatever its name. */
export function inputsAmong<T extends Pick<Leaf, 'path'>>(
  leaves: readonly T[] | undefined,
  inputs: readonly ModelPort[],
): readonly T[] {
  if (!leaves) {
    throw new InvalidInputError('A model runs tensors, and was given plain values');
  }
  return inputs.length === 1 && leaves.length === 1
    ? leaves
    : inputs.map(({ name }) => leafNamed(name, leaves));
}

function leafNamed<T extends Pick<Leaf, 'path'>>(name: string, leaves: readonly T[]): T {
  const leaf = leaves.find(({ path }) => path === name);
  if (!leaf) {
    throw new InvalidInputError(`The input "${name}" is missing`);
  }
  return leaf;
}

/** The replies' structure, made once. */
export class ModelReply {
  /** Reply order. */
  readonly ports: readonly ModelPort[];
  readonly names: readonly string[];
  private readonly example: FlatContainer;

  constructor({ outputs, fetches }: Pick<ModelSignature, 'outputs' | 'fetches'>) {
    const fetched = outputs.filter(({ name }) => fetches.includes(name));
    const empty = fetched.map(({ name, type }): [string, Container] => [
      name,
      new Tensor(type, zerosOf(type, [0]), [0]),
    ]);
    this.example = flatten(Object.fromEntries(empty))!;
    this.names = this.example.leaves.map(({ path }) => path);
    this.ports = this.names.map((name) => fetched.find((port) => port.name === name)!);
  }

  of(tensors: readonly Tensor[]): FlatContainer {
    return this.example.with(tensors);
  }
}

type Named<T> = Record<string, T>;

/** Takes inputs, then states. */
export type RunModel = (
  feeds: readonly Tensor[],
  names: readonly string[],
) => Promise<Named<Tensor>>;

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

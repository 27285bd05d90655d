import {
  type Container,
  FlatContainer,
  type FlatRows,
  flatten,
  type Leaf,
} from '../../batch/container.js';
import { Tensor, zerosOf } from '../../batch/tensor.js';
import { InvalidInputError } from '../../errors.js';
import type { ModelPort, ModelSignature } from './model-signature.js';

export function feedsOf(rows: FlatRows, inputs: readonly ModelPort[]): Tensor[] {
  const leaves = rows instanceof FlatContainer ? rows.leaves : undefined;
  return inputsAmong(leaves, inputs).map(({ tensor }) => tensor);
}

/** In the inputs' order. A single leaf is the only input, whatever its name. */
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

/** The replies' structure never changes, so it is made once. */
export class ModelReply {
  /** In the reply's order. */
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

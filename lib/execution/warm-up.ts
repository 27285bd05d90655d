import { Tensor } from 'onnxruntime-common';
import { Batch } from '../batch/batch.js';
import type { Container } from '../batch/container.js';
import { zerosOf } from '../batch/tensor.js';
import { InvalidServingError } from '../errors.js';
import {
  axesOf,
  describePort,
  hasRows,
  type ModelSignature,
} from '../partitions/onnx/model-signature.js';
import type { Call } from './call.js';
import type { ResolvedServing } from '../definition/resolved-serving.js';

/**
 * One row for every batch that is to be run before the serving is ready: of each example, and of
 * zeros for the keys of a model that has allowed sizes and no example.
 *
 * @throws InvalidServingError for an example without rows, a model that needs one, and sizes for a
 * model without a batch axis
 */
export async function examplesOf(
  { name, warmUp, keys }: ResolvedServing,
  signature: ModelSignature | undefined,
  prepare: (input: unknown) => Call | Promise<Call>,
): Promise<Batch[]> {
  const [padded] = [...keys].find(([, { allowedSizes }]) => allowedSizes) ?? [];
  if (signature && !hasRows(signature.inputs) && padded !== undefined) {
    throw new InvalidServingError(
      `Serving "${name}" is to pad the batches of key "${padded}", and its model has no batch ` +
        'axis: each call is one run; ' +
        'drop allowedSizes and pad',
    );
  }
  const examples: Batch[] = [];
  for (const input of warmUp) {
    const { rows } = await prepare(input);
    if (!(rows instanceof Batch) || rows.size === 0) {
      throw new InvalidServingError(
        `Serving "${name}": each input of warmUp must give a batch with rows`,
      );
    }
    examples.push(rows.slice(0, 1).pad(0));
  }
  const known = new Set(examples.map(({ key }) => key));
  const others = [...keys].filter(
    ([key, { allowedSizes }]) => signature && allowedSizes && !known.has(key),
  );
  return [...examples, ...others.map(([key]) => zeroRow(name, signature!).withKey(key))];
}

/**
 * A row of zeros for a model, if its inputs have but one inner shape.
 *
 * @throws InvalidServingError naming the input that may have many
 */
function zeroRow(serving: string, { inputs }: ModelSignature): Batch {
  const row: Record<string, Container> = {};
  for (const port of inputs) {
    const dims = port.shape.map((dim, axis) => (axis === port.batchAxis ? 1 : dim));
    const open = dims.findIndex((dim) => typeof dim !== 'number');
    if (open >= 0) {
      throw new InvalidServingError(
        `Serving "${serving}" is to run every allowed size before it is ready, but axis ${open} ` +
          `of ${describePort(port)} may have any size; ` +
          'give example inputs: warmUp: [...]',
      );
    }
    row[port.name] = new Tensor(port.type, zerosOf(port.type, dims as number[]), dims as number[]);
  }
  return Batch.ofContainer(row, axesOf(inputs));
}

/** The row as often as each of the sizes says. */
export function repeated(row: Batch, sizes: readonly number[]): Batch[] {
  return sizes.map((size) => Batch.merge(Array.from({ length: size }, () => row)));
}

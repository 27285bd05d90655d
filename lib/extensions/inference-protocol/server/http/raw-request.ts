import { InvalidInputError, Tensor } from '../../../../index.js';
import { datatypeOf, ReadContext, storageClasses } from '../../../../internal.js';
import { jsonLimits } from '../call-input.js';
import type { Port } from '../declared-port.js';
import type { InferenceRequest } from '../inference-request.js';
import { elementOf, tensorOfBytes } from '../../wire/tensor-bytes.js';

interface RawTarget {
  readonly model: string;
  readonly version: string | undefined;
  readonly inputs: readonly Port[];
}

/**
 * Reads a body without JSON as one row of the model's only input: its elements, or a single BYTES
 * element's text.
 *
 * @throws InvalidInputError for a model with several inputs, or with several open sizes in a row
 */
export function rawRequest(body: Buffer, { model, version, inputs }: RawTarget): InferenceRequest {
  const [port, ...others] = inputs;
  const context = new ReadContext({
    limits: jsonLimits,
    name: 'body',
    source: 'the request',
    allowsBytes: true,
  });
  if (!port || others.length > 0) {
    throw new InvalidInputError(
      `Model "${model}" has ${others.length + 1} inputs; a body without JSON is for a model with one`,
    );
  }
  const tensor =
    port.type === 'string'
      ? new Tensor('string', [elementOf(body, 0, context)], oneRow(model, port, 1))
      : tensorOfBytes(
          datatypeOf(port.type),
          oneRow(model, port, body.length / storageClasses.get(port.type)!.BYTES_PER_ELEMENT),
          body,
          context,
        );
  const parameters = new Map([['binary_data_output', true]]);
  return { model, version, parameters, inputs: new Map([[port.name, tensor]]) };
}

function oneRow(model: string, { name, shape, batchAxis }: Port, elements: number): number[] {
  const sizes = shape.map((size, axis) => (axis === batchAxis ? 1 : size));
  if (sizes.filter((size) => size === -1).length > 1) {
    throw new InvalidInputError(
      `The input "${name}" of model "${model}" has the shape [${shape.join(', ')}], which the ` +
        'number of its bytes does not tell; describe it in JSON',
    );
  }
  const known = sizes.reduce((product, size) => (size === -1 ? product : product * size), 1);
  return sizes.map((size) => (size === -1 ? Math.floor(elements / known) || 0 : size));
}

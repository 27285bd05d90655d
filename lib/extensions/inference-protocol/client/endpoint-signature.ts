import type { InferenceSession } from 'onnxruntime-common';
import { InvalidServingError } from '../../../index.js';
import {
  typeOfDatatype,
  type DeclaredAxes,
  type DeclaredPorts,
  type ModelSignature,
  signatureOf,
  withVariableAxes,
} from '../../../internal.js';
import type { EndpointModel } from './endpoint-options.js';

/** An input or output; a size of -1 is dynamic. */
export interface EndpointPort {
  readonly name: string;
  readonly datatype: string;
  readonly shape: readonly string[];
}

/** The `ModelMetadata` reply. */
export interface EndpointMetadataReply {
  readonly inputs: readonly EndpointPort[];
  readonly outputs: readonly EndpointPort[];
}

/** The part of `ModelConfig` that concerns batches; undefined if the server has no such call. */
export type BatchConfig = { readonly max_batch_size: number } | undefined;

/** @throws InvalidServingError when the server's description is missing or contradicts ours */
export function signatureOfEndpoint(
  { inputs, outputs }: EndpointMetadataReply,
  config: BatchConfig,
  { inputs: ownInputs = {}, outputs: ownOutputs = {}, fetches }: EndpointModel,
): ModelSignature {
  if (inputs.length === 0 || outputs.length === 0) {
    throw new InvalidServingError(
      'The server states no inputs or no outputs of the model, whose names and types are needed; ' +
        'add them to its metadata on the server',
    );
  }
  const declared: DeclaredPorts = {
    inputs: withBatchAxes(inputs, ownInputs, config),
    outputs: withBatchAxes(outputs, ownOutputs, config),
    fetches,
  };
  const described = {
    inputMetadata: inputs.map((port) => metadataOf('input', port)),
    outputMetadata: outputs.map((port) => metadataOf('output', port)),
  };
  const mostRows = config?.max_batch_size ?? 0;
  return withVariableAxes(
    {
      ...signatureOf(described, declared),
      states: [],
      dynamicallyQuantised: false,
      ...(mostRows > 0 && { mostRows }),
    },
    declared,
  );
}

/**
 * In a configuration, a largest batch size means that every first axis counts rows; without one, no
 * axis does. Declared axes take precedence.
 */
function withBatchAxes(
  ports: readonly EndpointPort[],
  declared: DeclaredAxes,
  config: BatchConfig,
): DeclaredAxes {
  if (!config) {
    return declared;
  }
  const stated = ports.map(({ name, shape }) => {
    const batchAxis = config.max_batch_size > 0 && shape.length > 0 ? 0 : null;
    return [name, { batchAxis, ...declared[name] }] as const;
  });
  return { ...declared, ...Object.fromEntries(stated) };
}

function metadataOf(
  kind: string,
  { name, datatype, shape }: EndpointPort,
): InferenceSession.ValueMetadata {
  // BF16 outputs are read as float32; onnxruntime has no BF16 tensor to send.
  const type = typeOfDatatype(kind === 'output' && datatype === 'BF16' ? 'FP32' : datatype);
  if (!type) {
    throw new InvalidServingError(
      `The ${kind} "${name}" of the model has the datatype ${datatype}, which no tensor has here; ` +
        (datatype === 'BF16' ? 'let the server take FP32' : 'change it on the server'),
    );
  }
  return { name, isTensor: true, type, shape: shape.map(sizeOf) };
}

function sizeOf(size: string): number | string {
  const number = Number(size);
  return number < 0 ? '' : number;
}

import { datatypeOf } from '../../../encoding/json-tensor.js';
import type { Port } from './declared-port.js';
import type { OfferedModel } from './offered-model.js';

export interface TensorMetadata {
  readonly name: string;
  readonly datatype: string;
  readonly shape: readonly number[];
}

/** With the protocol's names. */
export interface ModelMetadata {
  readonly name: string;
  readonly versions: readonly string[];
  readonly platform: string;
  readonly inputs: readonly TensorMetadata[];
  readonly outputs: readonly TensorMetadata[];
}

export function metadataOf(model: OfferedModel): ModelMetadata {
  const { name, versions, inputs, outputs } = model;
  return {
    name,
    versions,
    platform: platformOf(model).platform,
    inputs: inputs.ports.map(tensorMetadata),
    outputs: outputs.ports.map(tensorMetadata),
  };
}

function tensorMetadata({ name, type, shape }: Port): TensorMetadata {
  return { name, datatype: datatypeOf(type), shape };
}

export interface TensorConfig {
  readonly name: string;
  readonly data_type: string;
  /** Without the row axis if `max_batch_size` is above 0. */
  readonly dims: readonly number[];
}

/** What clients read of Triton's ModelConfig. */
export interface ModelConfig {
  readonly name: string;
  readonly platform: string;
  readonly backend: string;
  /** 0 unless every tensor has the row axis first and another axis. */
  readonly max_batch_size: number;
  readonly input: readonly TensorConfig[];
  readonly output: readonly TensorConfig[];
  readonly dynamic_batching?: {
    readonly preferred_batch_size: readonly number[];
    readonly max_queue_delay_microseconds: number;
  };
  readonly sequence_batching?: { readonly max_sequence_idle_microseconds: number };
  readonly model_transaction_policy: { readonly decoupled: boolean };
}

export function configOf(model: OfferedModel): ModelConfig {
  const { name, inputs, outputs, profile, isDecoupled } = model;
  const ports = [...inputs.ports, ...outputs.ports];
  // Clients drop the row axis and need another one.
  const hasRows = ports.every(({ batchAxis, shape }) => batchAxis === 0 && shape.length > 1);
  const config = ({ name: port, type, shape }: Port): TensorConfig => ({
    name: port,
    data_type: dataTypeOf(datatypeOf(type)),
    dims: hasRows ? shape.slice(1) : shape,
  });
  return {
    name,
    ...platformOf(model),
    max_batch_size: hasRows ? (profile?.batchSize ?? 1) : 0,
    input: inputs.ports.map(config),
    output: outputs.ports.map(config),
    ...(profile?.sessionIdle === undefined
      ? {
          dynamic_batching: {
            preferred_batch_size: [],
            max_queue_delay_microseconds: Math.round((profile?.batchTimeout ?? 0) * 1000),
          },
        }
      : {
          sequence_batching: {
            max_sequence_idle_microseconds: Math.round(profile.sessionIdle * 1000),
          },
        }),
    model_transaction_policy: { decoupled: isDecoupled },
  };
}

/** Triton's names. */
function platformOf({ profile }: OfferedModel) {
  return profile?.runner === 'model'
    ? { platform: 'onnxruntime_onnx', backend: 'onnxruntime' }
    : { platform: 'nestjs_serving', backend: 'nestjs_serving' };
}

/** 4-bit types have no name in the configuration. */
function dataTypeOf(datatype: string): string {
  if (datatype === 'BYTES') {
    return 'TYPE_STRING';
  }
  return datatype.endsWith('INT4') ? 'TYPE_INVALID' : `TYPE_${datatype}`;
}

import type { Tensor } from 'onnxruntime-common';
import { tensorToJson } from '../../json/json-tensor.js';
import { bytesOfTensor, datatypeOfTensor } from '../../protocol/tensor-bytes.js';
import type { InferenceReply, InferenceRequest } from '../inference-request.js';

/** A body and the headers that describe it. */
export interface HttpReply {
  readonly headers: Readonly<Record<string, string>>;
  readonly chunks: readonly Uint8Array[];
}

export function jsonReply(value: unknown): HttpReply {
  // Exactly this type: clients compare it.
  return {
    headers: { 'content-type': 'application/json' },
    chunks: [Buffer.from(JSON.stringify(value))],
  };
}

/**
 * The reply as JSON, with the bytes of binary outputs behind it. They are views of the tensors, and
 * no copies.
 */
export function writeReply(reply: InferenceReply, request: InferenceRequest): HttpReply {
  const { model, version, id, outputs } = reply;
  const binary: Uint8Array[] = [];
  const described = Array.from(outputs, ([name, tensor]) => {
    if (!isBinary(name, request)) {
      return { name, ...tensorAsJson(tensor) };
    }
    const bytes = bytesOfTensor(tensor);
    binary.push(bytes);
    return {
      name,
      datatype: datatypeOfTensor(tensor),
      shape: tensor.dims,
      parameters: { binary_data_size: bytes.length },
    };
  });
  const json = jsonReply({
    model_name: model,
    model_version: version,
    ...(id !== undefined && { id }),
    outputs: described,
  });
  if (binary.length === 0) {
    return json;
  }
  const length = json.chunks[0]!.length;
  return {
    headers: {
      'content-type': 'application/octet-stream',
      'inference-header-content-length': String(length),
    },
    chunks: [...json.chunks, ...binary],
  };
}

/** A parameter of the output, or else of the request. */
function isBinary(name: string, { outputs, parameters }: InferenceRequest): boolean {
  const own = outputs?.get(name)?.get('binary_data');
  return (own ?? parameters.get('binary_data_output')) === true;
}

function tensorAsJson(tensor: Tensor): object {
  return tensorToJson(tensor, 'list') as object;
}

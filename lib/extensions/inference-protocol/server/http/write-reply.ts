import { isUtf8 } from 'node:buffer';
import type { Tensor } from 'onnxruntime-common';
import { InvalidInputError } from '../../../../index.js';
import { tensorToJson, writeStrings } from '../../../../encoding/json-tensor.js';
import type { InferenceReply, InferenceRequest } from '../inference-request.js';
import { bytesOfTensor, datatypeOfTensor } from '../../wire/tensor-bytes.js';

export interface HttpReply {
  readonly headers: Readonly<Record<string, string>>;
  readonly chunks: readonly Uint8Array[];
  /** For outputs only: some clients don't decompress other replies. */
  readonly isCompressible?: boolean;
}

export function jsonReply(value: unknown): HttpReply {
  // Exactly this type: clients compare it.
  return {
    headers: { 'content-type': 'application/json' },
    chunks: [Buffer.from(JSON.stringify(value))],
  };
}

/** JSON, followed by views of the binary outputs. */
export function writeReply(reply: InferenceReply, request: InferenceRequest): HttpReply {
  const { model, version, id, outputs } = reply;
  const binary: Uint8Array[] = [];
  const described = Array.from(outputs, ([name, tensor]) => {
    if (!isBinary(name, request)) {
      return { name, ...tensorAsJson(name, tensor) };
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
    return { ...json, isCompressible: true };
  }
  const length = json.chunks[0]!.length;
  return {
    headers: {
      'content-type': 'application/octet-stream',
      'inference-header-content-length': String(length),
    },
    chunks: [...json.chunks, ...binary],
    isCompressible: true,
  };
}

function isBinary(name: string, { outputs, parameters }: InferenceRequest): boolean {
  const own = outputs?.get(name)?.get('binary_data');
  return (own ?? parameters.get('binary_data_output')) === true;
}

/** @throws InvalidInputError for bytes that aren't UTF-8 */
function tensorAsJson(name: string, tensor: Tensor): object {
  if (tensor.type !== 'string') {
    return tensorToJson(tensor, 'list') as object;
  }
  const texts = (tensor.data as readonly (string | Uint8Array)[]).map((element, i) => {
    if (typeof element === 'string') {
      return element;
    }
    if (isUtf8(element)) {
      return Buffer.from(element).toString();
    }
    throw new InvalidInputError(
      `The output "${name}" has bytes at ${i} that are not UTF-8, which JSON cannot hold; ask for ` +
        'it with the parameter binary_data',
    );
  });
  return writeStrings(tensor.dims, texts) as object;
}

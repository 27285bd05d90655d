import type { GrpcInferResponse, GrpcParameters } from '../../wire/grpc-messages.js';
import { toGrpcTensors } from '../../wire/grpc-tensors.js';
import type { InferenceReply } from '../inference-request.js';

/** Elements are always raw: Triton's clients read nothing else. */
export function writeInferReply(
  { model, version, id = '', outputs }: InferenceReply,
  parameters: GrpcParameters = {},
): GrpcInferResponse {
  const { tensors, raw } = toGrpcTensors(outputs);
  return {
    model_name: model,
    model_version: version,
    id,
    parameters,
    outputs: tensors,
    raw_output_contents: raw,
  };
}

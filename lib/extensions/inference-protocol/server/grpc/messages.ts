import { InvalidInputError, RequestTooLargeError } from '../../../../index.js';
import { truncate } from '../../../../doors/text.js';
import { ReadContext } from '../../../../encoding/json.js';
import type {
  GrpcInferRequest,
  GrpcInferResponse,
  GrpcParameter,
  GrpcParameters,
} from '../../wire/grpc-service.js';
import { fromGrpcTensors, toGrpcTensors } from '../../wire/grpc-tensors.js';
import { jsonLimits } from '../call-input.js';
import type { ResolvedProtocol } from '../options.js';
import { refuseExtensions } from '../inference.js';
import type {
  InferenceReply,
  InferenceRequest,
  Parameters,
  ParameterValue,
} from '../inference-request.js';

/** Limits in addition to the body limit. */
const LIMITS = { ...jsonLimits, tensors: 1024 };

/**
 * Aligned tensors are views of the message.
 *
 * @throws InvalidInputError naming the tensor
 * @throws RequestTooLargeError for too many bytes in lists
 */
export function readInferRequest(
  message: GrpcInferRequest,
  { bodyLimit, grpc }: Pick<ResolvedProtocol, 'bodyLimit' | 'grpc'>,
): InferenceRequest {
  if (message.isUndecoded) {
    throw new RequestTooLargeError(
      `The request has more than ${grpc?.listLimit} bytes beside raw contents, the limit of this ` +
        'server (grpc.listLimit); send tensors as raw contents',
    );
  }
  const { model_name, model_version, id, parameters, inputs, outputs = [] } = message;
  const limits = { ...LIMITS, bytes: bodyLimit };
  const context = new ReadContext({
    limits,
    name: 'inputs',
    source: 'the request',
    allowsBytes: true,
  });
  const inputParameters = new Map(inputs.map((each) => [each.name, parametersOf(each.parameters)]));
  // A tensor in shared memory has no elements to read.
  inputParameters.forEach(refuseExtensions);
  const raw = message.raw_input_contents;
  return {
    model: model_name,
    version: model_version,
    id,
    parameters: parametersOf(parameters),
    inputs: fromGrpcTensors({ tensors: inputs, raw }, context),
    inputParameters,
    outputs: outputs.length === 0 ? undefined : outputsIn(outputs),
  };
}

function outputsIn(
  outputs: NonNullable<GrpcInferRequest['outputs']>,
): ReadonlyMap<string, Parameters> {
  const read = new Map<string, Parameters>();
  for (const { name, parameters } of outputs) {
    if (read.has(name)) {
      throw new InvalidInputError(`"outputs.${truncate(name)}" in the request is there twice`);
    }
    read.set(name, parametersOf(parameters));
  }
  return read;
}

function parametersOf(parameters: GrpcParameters = {}): Parameters {
  return new Map(
    Object.entries(parameters).flatMap(([name, parameter]) => {
      const value = valueOf(parameter);
      return value === undefined ? [] : [[name, value] as const];
    }),
  );
}

function valueOf({
  bool_param,
  int64_param,
  uint64_param,
  string_param,
  double_param,
}: GrpcParameter): ParameterValue | undefined {
  const whole = int64_param ?? uint64_param;
  if (whole !== undefined) {
    return Number.isSafeInteger(Number(whole)) ? Number(whole) : BigInt(whole);
  }
  return bool_param ?? string_param ?? double_param;
}

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

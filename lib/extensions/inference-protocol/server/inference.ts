import { NotImplementedException } from '@nestjs/common';
import { Batch, type CallOptions, InvalidInputError } from '../../../index.js';
import { byOneVersion, callEach } from '../../../encoding/turns.js';
import { type CallInput, callInputOf, isText } from './call-input.js';
import {
  callOptionsOf,
  flagIn,
  type InferenceCaller,
  type InferenceReply,
  type InferenceRequest,
  type Parameters,
  sequenceStepOf,
  type StreamedReply,
  wholeIn,
} from './inference-request.js';
import type { OfferedModel, OfferedModels } from './offered-models.js';
import { type CallReply, chosenOutputs, replyTensors, unknownOutput } from './reply-tensors.js';
import { Sequences, type StepReply } from './sequences.js';

/**
 * Answers requests:
 *
 *     request -> model -> input -> call of the serving -> reply -> tensors
 */
export class Inference {
  private readonly sequences = new Sequences();

  constructor(
    private readonly models: OfferedModels,
    private readonly jsonLimit: number,
  ) {}

  /** The rows form one call. */
  async infer(request: InferenceRequest, caller: InferenceCaller): Promise<InferenceReply> {
    const model = this.models.toRun(request.model, request.version);
    if (model.isDecoupled) {
      throw new NotImplementedException(
        `Model "${model.name}" has several replies to a request; call it by ModelStreamInfer`,
      );
    }
    checkRequest(model, request);
    const input = await this.inputOf(model, request);
    const options = callOptionsOf(request, caller);
    const { version, ...reply } = await this.call(model, request, input, options);
    return replyTo(model, { ...request, version }, reply);
  }

  /** Models that aren't decoupled reply once. */
  async *stream(
    request: InferenceRequest,
    caller: InferenceCaller,
  ): AsyncGenerator<StreamedReply, void> {
    const model = this.models.toRun(request.model, request.version);
    if (!model.isDecoupled) {
      yield { ...(await this.infer(request, caller)), isFinal: true };
      return;
    }
    checkRequest(model, request);
    const input = await this.inputOf(model, request);
    const options = callOptionsOf(request, caller);
    const isOne = input.rows !== undefined && isShaped(model);
    if (isOne && input.rows.length !== 1) {
      throw new InvalidInputError(
        `Model "${model.name}" takes one row in a request of several replies, and was given ` +
          `${input.rows.length}`,
      );
    }
    const value = isOne ? input.rows[0] : asInput(input);
    const version = model.local?.versionFor(value, options);
    const routed = version === undefined ? options : { ...options, version };
    const answered = { ...request, version: versionOf(model, routed) };
    for await (const event of model.serving.stream(value, routed)) {
      const { output } = event;
      const reply = { value: isOne ? [output] : output, isList: input.rows !== undefined };
      yield { ...(await replyTo(model, answered, reply)), isFinal: false };
    }
    yield { ...emptyReply(model, answered), isFinal: true };
  }

  private inputOf(model: OfferedModel, request: InferenceRequest): Promise<CallInput> {
    const mostRows = model.profile?.maxRowsPerCall ?? Infinity;
    return callInputOf(model.inputs, request, { jsonLimit: this.jsonLimit, mostRows });
  }

  private async call(
    model: OfferedModel,
    { parameters }: InferenceRequest,
    input: CallInput,
    options: CallOptions,
  ): Promise<Pick<CallReply, 'value' | 'isList'> & { readonly version: string | undefined }> {
    const { serving, hasSequences } = model;
    const isList = input.rows !== undefined;
    const step = sequenceStepOf(parameters);
    if (hasSequences || step) {
      const { value, version } = await this.step(model, step, input, options);
      return { value: isList ? [value] : value, isList, version };
    }
    const first = input.rows ? input.rows[0] : input.tensors;
    return byOneVersion(model.local, first, options, async (routed) => {
      const version = versionOf(model, routed);
      const value =
        isList && isShaped(model)
          ? await callEach(input.rows, options.signal, (row, signal) =>
              serving.batchedRun(row, { ...routed, signal }),
            )
          : await serving.batchedRun(asInput(input), routed);
      return { value, isList, version };
    });
  }

  private step(
    model: OfferedModel,
    step: ReturnType<typeof sequenceStepOf>,
    input: CallInput,
    options: CallOptions,
  ): Promise<StepReply> {
    const { name, hasSequences } = model;
    if (!hasSequences) {
      throw new InvalidInputError(
        `Model "${name}" keeps no state, and the request has a sequence_id; send it without`,
      );
    }
    if (!step) {
      throw new InvalidInputError(
        `Model "${name}" keeps a state for each sequence, and the request has no sequence_id; give ` +
          'it one, and the first request of a sequence sequence_start',
      );
    }
    if (input.rows && input.rows.length !== 1) {
      throw new InvalidInputError(
        `A request of a sequence of model "${name}" has one row, and not ${input.rows.length}`,
      );
    }
    return this.sequences.run(model, step, input.rows ? input.rows[0] : input.tensors, options);
  }
}

/** Version of a call that begins now: a reload before its end changes the active one. */
function versionOf(model: OfferedModel, { version }: CallOptions): string {
  return version ?? model.activeVersion;
}

/** True if a pre- or postprocess step limits a call to one row. */
function isShaped({ profile }: OfferedModel): boolean {
  return profile !== undefined && (profile.shapesInput || profile.shapesOutput);
}

function asInput({ tensors, rows }: CallInput & { readonly tensors?: unknown }): unknown {
  return rows ? Batch.ofValues(rows) : tensors;
}

/** @throws InvalidInputError for outputs that the model lacks */
function checkRequest(model: OfferedModel, request: InferenceRequest): void {
  const { ports, form } = model.outputs;
  const known = ports.map(({ name }) => name);
  flagIn(request.parameters, 'binary_data_output');
  for (const [name, parameters] of request.outputs ?? []) {
    if (form !== 'found' && !known.includes(name)) {
      throw unknownOutput(model.name, name, known);
    }
    refuseExtensions(parameters);
    flagIn(parameters, 'binary_data');
    if (wholeIn(parameters, 'classification') > 0) {
      throw new NotImplementedException('The extension "classification" is not supported');
    }
  }
  for (const parameters of request.inputParameters?.values() ?? []) {
    refuseExtensions(parameters);
  }
}

/** @throws NotImplementedException for a tensor in shared memory */
export function refuseExtensions(parameters: Parameters): void {
  if (parameters.has('shared_memory_region')) {
    throw new NotImplementedException(
      'Shared memory is not supported; send the tensors themselves',
    );
  }
}

async function replyTo(
  model: OfferedModel,
  request: InferenceRequest,
  reply: Pick<CallReply, 'value' | 'isList'>,
): Promise<InferenceReply> {
  const [input] = model.inputs.ports;
  const text = input !== undefined && isText(input.name, request);
  const tensors = await replyTensors(model.name, model.outputs, { ...reply, isText: text });
  const outputs = chosenOutputs(model.name, tensors, request.outputs);
  return { ...emptyReply(model, request), outputs };
}

function emptyReply(model: OfferedModel, { id, version }: InferenceRequest): InferenceReply {
  return {
    model: model.name,
    version: version || model.activeVersion,
    id: id || undefined,
    outputs: new Map(),
  };
}

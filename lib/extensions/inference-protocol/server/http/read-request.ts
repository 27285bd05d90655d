import type { IncomingMessage } from 'node:http';
import { InvalidInputError, RequestTooLargeError, Tensor } from '../../../../index.js';
import { type AbortSignalLike } from '../../../../doors/calls.js';
import { formatValue } from '../../../../doors/text.js';
import { readShape, readTensor } from '../../../../encoding/json-tensor.js';
import { BodyThread } from '../../../../encoding/body-thread.js';
import { type OwnBytes } from '../../../../encoding/http.js';
import { limitBeyond, parseJson, ReadContext, type TextLimits } from '../../../../encoding/json.js';
import { jsonLimits } from '../call-input.js';
import { refuseExtensions } from '../inference.js';
import type { InferenceRequest, Parameters, ParameterValue } from '../inference-request.js';
import { rawRequest, readBody } from './read-body.js';
import { type Port } from '../options.js';
import { tensorOfBytes } from '../../wire/tensor-bytes.js';

export interface RequestTarget {
  readonly model: string;
  readonly version: string | undefined;
  readonly bodyLimit: number;
  readonly jsonLimit: number;
  /** Used if the body doesn't describe them. */
  readonly inputs: readonly Port[];
}

const HEADER_LENGTH = 'inference-header-content-length';

/** Tensors have many elements. */
const textLimits: TextLimits = {
  depth: jsonLimits.depth,
  nodes: jsonLimits.nodes,
  values: Infinity,
  advice: 'give the data of a tensor as one flat list, or as binary data',
};

/** Limits of a few milliseconds. */
const MOST_HERE = 2 ** 18;
const limitsHere = { depth: Infinity, nodes: 2 ** 12, values: 2 ** 14 };
/** Shorter JSON can't exceed these, except in depth. */
const LEAST_LOOKED_AT = 2 ** 13;

export interface LargeRequest {
  readonly body: OwnBytes;
  /** Bytes of leading JSON. */
  readonly length: number;
  readonly model: string;
  readonly version: string | undefined;
}

/** Tensors lose their class between threads. */
export type PackedRequest = Omit<InferenceRequest, 'inputs'> & {
  readonly inputs: ReadonlyMap<string, Pick<Tensor, 'type' | 'dims' | 'data'>>;
};

export const requestThread = new BodyThread<LargeRequest, PackedRequest>(
  'extensions/inference-protocol/server/http/request-thread',
);

/**
 * JSON with optional binary tensors, or raw data.
 *
 * @param signal ends the wait for a thread
 */
export async function readRequest(
  request: IncomingMessage,
  target: RequestTarget,
  signal: AbortSignalLike | undefined,
): Promise<InferenceRequest> {
  const { bodyLimit: limit, jsonLimit } = target;
  const given = headerLength(request);
  const body = await readBody(request, { limit, aligned: given ?? 0 });
  if (given === 0) {
    return rawRequest(body, target);
  }
  const length = given ?? body.length;
  if (length > body.length) {
    throw new InvalidInputError(
      `The header Inference-Header-Content-Length is ${length}, and the body has ${body.length} bytes`,
    );
  }
  checkLength(length, jsonLimit);
  const { model, version } = target;
  const isLong =
    length > MOST_HERE ||
    (length > LEAST_LOOKED_AT && limitBeyond(body.subarray(0, length), limitsHere));
  const packed = isLong ? requestThread.read({ body, length, model, version }, signal) : undefined;
  return packed ? unpacked(await packed) : requestIn(body, length, target);
}

function unpacked({ inputs, ...others }: PackedRequest): InferenceRequest {
  const tensors = Array.from(
    inputs,
    ([name, { type, dims, data }]) => [name, new Tensor(type, data, dims)] as const,
  );
  return { ...others, inputs: new Map(tensors) };
}

/**
 * @param length bytes of JSON at the beginning
 * @throws InvalidInputError
 */
export function requestIn(
  body: Buffer,
  length: number,
  target: Pick<RequestTarget, 'model' | 'version'>,
): InferenceRequest {
  return requestOf(parse(body.subarray(0, length)), body.subarray(length), target);
}

/** An empty body means `{}`. */
export async function readJsonBody(
  request: IncomingMessage,
  { jsonLimit: limit }: Pick<RequestTarget, 'jsonLimit'>,
): Promise<Readonly<Record<string, unknown>>> {
  const body = await readBody(request, { limit, aligned: 0 });
  return body.length === 0 ? {} : partsOf(parse(body));
}

/** @throws InvalidInputError for anything but an object */
export function partsOf(json: unknown): Readonly<Record<string, unknown>> {
  return contextOf().partsOf(json);
}

/** Bytes; undefined if the whole body is JSON. */
function headerLength({ headers }: IncomingMessage): number | undefined {
  const length = headers[HEADER_LENGTH];
  if (length === undefined) {
    return undefined;
  }
  return typeof length === 'string' && /^\d{1,15}$/.test(length)
    ? Number(length)
    : refuse(`The header Inference-Header-Content-Length is ${formatValue(length)}, and no length`);
}

function checkLength(length: number, limit: number): void {
  if (length > limit) {
    throw new RequestTooLargeError(
      `The JSON of the request has ${length} bytes and the limit of this server is ${limit} ` +
        '(jsonLimit); send tensors as binary data',
    );
  }
}

function parse(bytes: Buffer): unknown {
  const parsed = parseJson(bytes, textLimits);
  return 'value' in parsed ? parsed.value : refuse(`The body of the request ${parsed.fault}`);
}

function requestOf(
  json: unknown,
  binary: Buffer,
  { model, version }: Pick<RequestTarget, 'model' | 'version'>,
) {
  const context = contextOf();
  const { id, parameters, inputs, outputs } = context.partsOf(json);
  const ownId =
    id === null || id === undefined
      ? undefined
      : typeof id === 'string'
        ? id
        : context.fail(`is ${formatValue(id)}; give a string`, 'id');
  const parts = new BinaryParts(binary);
  const read: InferenceRequest = {
    model,
    version,
    id: ownId,
    parameters: readParameters(parameters, context),
    ...readInputs(inputs, parts, context),
    outputs: readOutputs(outputs, context),
  };
  parts.end();
  return read;
}

function readInputs(list: unknown, parts: BinaryParts, context: ReadContext) {
  const inputs = new Map<string, Tensor>();
  const inputParameters = new Map<string, Parameters>();
  context.at('inputs', () =>
    eachNamed(list, context, (name, { shape, datatype, data, parameters: given }) => {
      const parameters = readParameters(given, context);
      refuseExtensions(parameters);
      const size = parameters.get('binary_data_size');
      if (size !== undefined && data !== undefined) {
        context.fail('has both data and binary_data_size; send one of them');
      }
      const tensor =
        size === undefined
          ? readTensor({ shape, datatype, data }, context)
          : parts.take(datatype, shape, size, context);
      if (inputs.has(name)) {
        context.fail(`has the name "${name}", which another input has`);
      }
      inputs.set(name, tensor);
      inputParameters.set(name, parameters);
    }),
  );
  return { inputs, inputParameters };
}

function readOutputs(
  list: unknown,
  context: ReadContext,
): ReadonlyMap<string, Parameters> | undefined {
  const outputs = new Map<string, Parameters>();
  if (list !== undefined && list !== null) {
    context.at('outputs', () =>
      eachNamed(list, context, (name, { parameters }) => {
        if (outputs.has(name)) {
          context.fail(`has the name "${name}", which another output has`);
        }
        outputs.set(name, readParameters(parameters, context));
      }),
    );
  }
  // An empty list means all outputs.
  return outputs.size === 0 ? undefined : outputs;
}

function eachNamed(
  list: unknown,
  context: ReadContext,
  read: (name: string, parts: Readonly<Record<string, unknown>>) => void,
): void {
  const { tensors } = context.limits;
  if (!Array.isArray(list) || list.length > tensors) {
    context.fail(`is ${formatValue(list)}; give a list of up to ${tensors} tensors`);
  }
  list.forEach((entry: unknown, i) =>
    context.at(i, () => {
      const parts = context.partsOf(entry);
      const { name } = parts;
      read(
        typeof name === 'string'
          ? name
          : context.fail(`is ${formatValue(name)}; give a string`, 'name'),
        parts,
      );
    }),
  );
}

function readParameters(given: unknown, context: ReadContext): Parameters {
  if (given === undefined || given === null) {
    return new Map();
  }
  return context.at('parameters', () => {
    const entries = Object.entries(context.partsOf(given));
    context.countNodes(entries.length);
    return new Map(
      entries.map(([name, value]) => [
        name,
        isParameter(value)
          ? value
          : context.fail(`is ${formatValue(value)}; give a string, number or boolean`, name),
      ]),
    );
  });
}

function isParameter(value: unknown): value is Exclude<ParameterValue, bigint> {
  return typeof value === 'string' || typeof value === 'number' || typeof value === 'boolean';
}

/** Follows the JSON, in input order. */
class BinaryParts {
  private at = 0;

  constructor(private readonly bytes: Buffer) {}

  take(datatype: unknown, shape: unknown, size: unknown, context: ReadContext): Tensor {
    const left = this.bytes.length - this.at;
    if (typeof size !== 'number' || !Number.isInteger(size) || size < 0 || size > left) {
      context.fail(
        `has a binary_data_size of ${formatValue(size)}, and ${left} bytes are left in the body`,
      );
    }
    if (typeof datatype !== 'string') {
      context.fail(`is ${formatValue(datatype)}; give a string`, 'datatype');
    }
    const bytes = this.bytes.subarray(this.at, (this.at += size));
    return tensorOfBytes(
      datatype,
      context.at('shape', () => readShape(shape, context)),
      bytes,
      context,
    );
  }

  /** @throws InvalidInputError for bytes without an input */
  end(): void {
    const left = this.bytes.length - this.at;
    if (left > 0) {
      refuse(`The body has ${left} bytes after those of its inputs`);
    }
  }
}

function contextOf(): ReadContext {
  return new ReadContext({
    limits: jsonLimits,
    name: 'body',
    source: 'the request',
    allowsBytes: true,
  });
}

function refuse(message: string): never {
  throw new InvalidInputError(message);
}

import type { Tensor } from 'onnxruntime-common';
import { type Container, InvalidInputError, RequestTooLargeError } from '../../../index.js';
import { messageOf, numberOfFloat16 } from '../../../internal.js';
import { datatypeOf } from '../../../encoding/json-tensor.js';
import { type JsonLimits, nestingBeyond, ReadContext, readJson } from '../../../encoding/json.js';
import { describePorts, type ModelInputs } from './offered-models.js';
import { type Port } from './options.js';
import type { InferenceRequest } from './inference-request.js';

/** Tensors that hold a call's rows, or a list of rows. */
export type CallInput =
  | { readonly tensors: Container; readonly rows?: undefined }
  | { readonly rows: readonly unknown[] };

/** For JSON rows, whose bytes `jsonLimit` bounds. */
export const jsonLimits: JsonLimits = {
  bytes: Infinity,
  tensors: 4096,
  rank: 16,
  depth: 64,
  nodes: 2 ** 20,
};

/**
 * Doesn't copy tensors.
 *
 * @param jsonLimit most bytes of JSON rows
 * @throws InvalidInputError naming the missing, unknown or invalid tensor
 * @throws RequestTooLargeError for more JSON
 */
export function callInputOf(
  inputs: ModelInputs,
  request: InferenceRequest,
  jsonLimit: number,
): CallInput {
  const { ports } = inputs;
  checkTensors(inputs, request);
  const tensors = ports.map(({ name }) => request.inputs.get(name)!);
  switch (inputs.form) {
    case 'json':
      return {
        rows: jsonRows(ports[0]!.name, tensors[0]!.data as readonly string[], request, jsonLimit),
      };
    case 'columns':
      return { rows: columnRows(ports, tensors) };
    default:
      return { tensors: containerOf(ports, tensors) };
  }
}

function containerOf(ports: readonly Port[], tensors: readonly Tensor[]): Container {
  return ports.length === 1 && ports[0]!.isBare
    ? tensors[0]!
    : Object.fromEntries(ports.map(({ name }, i) => [name, tensors[i]!]));
}

function checkTensors({ form, ports }: ModelInputs, { model, inputs }: InferenceRequest): void {
  const fail = (what: string): never => {
    throw new InvalidInputError(`Model "${model}" takes [${describePorts(ports)}]: ${what}`);
  };
  let first: { readonly name: string; readonly rows: number } | undefined;
  for (const port of ports) {
    const { name, batchAxis } = port;
    const tensor = inputs.get(name) ?? fail(`the input "${name}" is missing`);
    const fault = faultOf(port, tensor, form);
    if (fault !== undefined) {
      fail(`the input "${name}" ${fault}`);
    }
    const rows = batchAxis === null ? undefined : tensor.dims[batchAxis]!;
    first ??= rows === undefined ? undefined : { name, rows };
    if (first && rows !== undefined && rows !== first.rows) {
      fail(
        `the input "${name}" has ${rows} rows and the input "${first.name}" has ${first.rows}; all ` +
          'need the same number',
      );
    }
  }
  if (inputs.size > ports.length) {
    const known = new Set(ports.map(({ name }) => name));
    fail(`it has no input "${[...inputs.keys()].find((name) => !known.has(name))}"`);
  }
}

function faultOf(
  { type, shape }: Port,
  tensor: Tensor,
  form: ModelInputs['form'],
): string | undefined {
  if (tensor.type !== type) {
    return `is ${datatypeOf(tensor.type)} and must be ${datatypeOf(type)}`;
  }
  const { dims } = tensor;
  // Triton's clients send texts with an extra axis of length 1.
  const isColumn = form !== 'tensors' && dims.length === 2 && dims[1] === 1;
  const fits =
    dims.length === shape.length && shape.every((size, axis) => size === -1 || size === dims[axis]);
  if (fits || isColumn) {
    const binary = type === 'string' && form !== 'columns' ? binaryIn(tensor) : -1;
    return binary === -1
      ? undefined
      : `has the element ${binary}, which is not UTF-8; only inputs that are declared as BYTES take other bytes`;
  }
  return `has the shape [${dims.join(', ')}] and must have [${shape.join(', ')}], -1 being any size`;
}

function binaryIn({ data }: Tensor): number {
  return (data as string[]).findIndex((element) => typeof element !== 'string');
}

/** Each element is a JSON row, or with the `content_type` "str" the row itself. */
function jsonRows(
  name: string,
  elements: readonly string[],
  request: InferenceRequest,
  jsonLimit: number,
): readonly unknown[] {
  if (isText(name, request)) {
    return elements;
  }
  const bytes = elements.reduce((sum, text) => sum + Buffer.byteLength(text), 0);
  if (bytes > jsonLimit) {
    throw new RequestTooLargeError(
      `The rows of the request have ${bytes} bytes of JSON and the limit of this server is ` +
        `${jsonLimit} (jsonLimit); send fewer rows`,
    );
  }
  const context = new ReadContext({ limits: jsonLimits, name, source: 'the request' });
  return elements.map((text, i) =>
    context.at(i, () => {
      let json: unknown;
      try {
        checkNesting(text, jsonLimits);
        json = JSON.parse(text);
      } catch (cause) {
        context.fail(
          `is not JSON (${messageOf(cause)}); for plain text give the input the parameter ` +
            'content_type "str"',
        );
      }
      return readJson(json, context);
    }),
  );
}

/** The input's own parameter comes first. */
export function isText(
  name: string,
  { parameters, inputParameters }: Pick<InferenceRequest, 'parameters' | 'inputParameters'>,
): boolean {
  const own = inputParameters?.get(name)?.get('content_type');
  return (own ?? parameters.get('content_type')) === 'str';
}

/** A row is one element, or an object of several inputs' elements. */
function columnRows(ports: readonly Port[], tensors: readonly Tensor[]): readonly unknown[] {
  const columns = tensors.map(elementsOf);
  return ports.length === 1
    ? columns[0]!
    : columns[0]!.map((_, row) =>
        Object.fromEntries(ports.map(({ name }, i) => [name, columns[i]![row]])),
      );
}

function elementsOf({ type, data }: Tensor): readonly unknown[] {
  const elements: readonly unknown[] = Array.from<unknown>(data as ArrayLike<unknown>);
  if (type === 'bool') {
    return elements.map(Boolean);
  }
  return type === 'float16' && data instanceof Uint16Array
    ? elements.map((bits) => numberOfFloat16(bits as number))
    : elements;
}

/** @throws InvalidInputError for large or deep nesting */
export function checkNesting(
  json: string | Buffer,
  limits: Pick<JsonLimits, 'depth' | 'nodes'>,
): void {
  const exceeded = nestingBeyond(typeof json === 'string' ? Buffer.from(json) : json, limits);
  if (exceeded) {
    throw new InvalidInputError(
      exceeded === 'depth'
        ? `The JSON lies deeper than ${limits.depth} levels`
        : `The JSON has more than ${limits.nodes} lists and objects; give the data of a tensor as ` +
            'one flat list, or as binary data',
    );
  }
}

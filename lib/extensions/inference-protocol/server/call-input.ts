import type { Tensor } from 'onnxruntime-common';
import { type Container, InvalidInputError, RequestTooLargeError } from '../../../index.js';
import { numberOfFloat16 } from '../../../doors/values.js';
import { datatypeOf } from '../../../encoding/json-tensor.js';
import {
  type JsonLimits,
  parseJson,
  ReadContext,
  readJson,
  type TextLimits,
} from '../../../encoding/json.js';
import { Turns } from '../../../encoding/turns.js';
import { describePorts, type ModelInputs } from './offered-models.js';
import { type Port } from './options.js';
import type { InferenceRequest } from './inference-request.js';

export type CallInput =
  | { readonly tensors: Container; readonly rows?: undefined }
  | { readonly rows: readonly unknown[] };

/** Limits in addition to `jsonLimit`, so parsing takes milliseconds. */
export const jsonLimits: JsonLimits = {
  bytes: Infinity,
  tensors: 4096,
  rank: 16,
  depth: 64,
  nodes: 2 ** 20,
  texts: 2 ** 16,
};

/** Each row is parsed in one go. */
const rowLimits: TextLimits = {
  depth: jsonLimits.depth,
  nodes: 2 ** 12,
  values: 2 ** 15,
  advice: 'put numbers into a $tensor, with base64 as its data',
};

export interface InputLimits {
  readonly jsonLimit: number;
  readonly mostRows: number;
}

/**
 * Doesn't copy tensors.
 *
 * @throws InvalidInputError naming the missing, unknown or invalid tensor
 * @throws RequestTooLargeError beyond a limit
 */
export async function callInputOf(
  inputs: ModelInputs,
  request: InferenceRequest,
  { jsonLimit, mostRows }: InputLimits,
): Promise<CallInput> {
  const { ports } = inputs;
  checkTensors(inputs, request);
  const tensors = ports.map(({ name }) => request.inputs.get(name)!);
  if (inputs.form !== 'tensors') {
    checkRows(tensors[0]!, request, mostRows);
  }
  switch (inputs.form) {
    case 'json':
      return {
        rows: await jsonRows(
          ports[0]!.name,
          tensors[0]!.data as readonly string[],
          request,
          jsonLimit,
        ),
      };
    case 'columns':
      return { rows: columnRows(ports, tensors) };
    default:
      return { tensors: containerOf(ports, tensors) };
  }
}

function checkRows({ dims }: Tensor, { model }: InferenceRequest, most: number): void {
  const rows = dims[0] ?? 1;
  if (rows > most) {
    throw new RequestTooLargeError(
      `Model "${model}" takes at most ${most} rows in a request, and was given ${rows}`,
    );
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

/** Each element is a JSON row, or the row itself if the `content_type` is "str". */
async function jsonRows(
  name: string,
  elements: readonly string[],
  request: InferenceRequest,
  jsonLimit: number,
): Promise<readonly unknown[]> {
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
  const turns = new Turns();
  const rows: unknown[] = [];
  for (const [i, text] of elements.entries()) {
    rows.push(context.at(i, () => jsonRow(text, context)));
    if (turns.isOver) {
      await turns.next();
    }
  }
  return rows;
}

function jsonRow(text: string, context: ReadContext): unknown {
  const parsed = parseJson(text, rowLimits);
  return 'value' in parsed
    ? readJson(parsed.value, context)
    : context.fail(
        `${parsed.fault} (for plain text, give the input the parameter content_type "str")`,
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

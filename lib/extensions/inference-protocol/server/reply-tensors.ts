import { isUint8Array } from 'node:util/types';
import type { Tensor as TensorType } from 'onnxruntime-common';
import { Tensor, InvalidInputError, InvalidOutputError } from '../../../index.js';
import { messageOf, typeName } from '../../../doors/text.js';
import { isPlainObject, checkTensor, isTensor, storageClasses } from '../../../doors/values.js';
import { wordOfNumber } from '../../../encoding/element-types.js';
import { datatypeOf, readTensor } from '../../../encoding/json-tensor.js';
import { ReadContext, writeTensors } from '../../../encoding/json.js';
import { Turns } from '../../../encoding/turns.js';
import { type ModelOutputs } from './offered-models.js';
import { type Port } from './options.js';
import type { Parameters } from './inference-request.js';

type Tensors = ReadonlyMap<string, TensorType>;

export interface CallReply {
  readonly value: unknown;
  readonly isList: boolean;
  /** Sends strings as they are, not as JSON. */
  readonly isText: boolean;
}

/**
 * Keeps the model's order.
 *
 * @throws InvalidOutputError for a reply that doesn't match the model
 */
export async function replyTensors(
  model: string,
  outputs: ModelOutputs,
  reply: CallReply,
): Promise<Tensors> {
  const { form, ports } = outputs;
  try {
    if (form === 'json') {
      return new Map([[ports[0]!.name, await jsonColumn(resultsIn(reply), reply.isText)]]);
    }
    const found = tensorsIn(reply.value, ports);
    if (found && form === 'columns') {
      ports.forEach((port) => checkDeclared(port, found.get(port.name)));
    }
    return found ?? new Map(ports.map((port) => [port.name, columnOf(port, ports, reply)]));
  } catch (cause) {
    throw new InvalidOutputError(
      `The reply of model "${model}" cannot be sent: ${messageOf(cause)}`,
      { cause },
    );
  }
}

function tensorsIn(value: unknown, ports: readonly Port[]): Tensors | undefined {
  if (isTensor(value)) {
    return new Map([[ports[0]?.name ?? 'output', checkTensor(value)]]);
  }
  if (!isPlainObject(value) || Array.isArray(value)) {
    return ports.length === 0 ? refuse(`it is ${typeName(value)}, and no tensors`) : undefined;
  }
  const parts = value as Readonly<Record<string, unknown>>;
  const names = ports.length === 0 ? Object.keys(parts) : ports.map(({ name }) => name);
  const missing = names.find((name) => !isTensor(parts[name]));
  if (missing === undefined) {
    return new Map(names.map((name) => [name, checkTensor(parts[name] as TensorType, name)]));
  }
  return ports.length === 0 ? refuse(`"${missing}" in it is no tensor`) : undefined;
}

function checkDeclared(port: Port, tensor: TensorType | undefined): void {
  const { name, shape } = port;
  if (!tensor) {
    return refuse(`it is one tensor, and has no "${name}"`);
  }
  checkType(port, tensor);
  const { dims } = tensor;
  const fits = shape.every((size, axis) => size === -1 || size === dims[axis]);
  if (dims.length !== shape.length || !fits) {
    refuse(`"${name}" has the shape [${dims.join(', ')}], and [${shape.join(', ')}] is declared`);
  }
}

function checkType({ name, type }: Port, tensor: TensorType): void {
  if (tensor.type !== type) {
    refuse(`"${name}" is ${datatypeOf(tensor.type)}, and ${datatypeOf(type)} is declared`);
  }
}

function resultsIn({ value, isList }: CallReply): readonly unknown[] {
  return isList && Array.isArray(value) ? (value as readonly unknown[]) : [value];
}

async function jsonColumn(results: readonly unknown[], isText: boolean): Promise<TensorType> {
  const turns = new Turns();
  const texts: string[] = [];
  for (const result of results) {
    texts.push(
      isText && typeof result === 'string'
        ? result
        : (JSON.stringify(writeTensors(result, 'list')) ?? 'null'),
    );
    if (turns.isOver) {
      await turns.next();
    }
  }
  return new Tensor('string', texts, [texts.length]);
}

/** A single output takes the whole result. */
function columnOf(port: Port, ports: readonly Port[], reply: CallReply): TensorType {
  const { value } = reply;
  const results = Array.isArray(value) ? (value as readonly unknown[]) : [value];
  const values = results.map((result) => partOf(result, port, ports.length === 1));
  const rows = values.map((each) => elementsOf(each, port));
  const shape = [rows.length, ...rowShape(port, rows[0]?.length ?? 0)];
  checkLengths(port, rows, shape);
  const joined = joinedArrays(port, rows, shape);
  if (joined) {
    return joined;
  }
  const context = new ReadContext({
    limits: noLimits,
    name: port.name,
    source: 'the reply',
    allowsBytes: true,
  });
  const data = rows.flatMap((row) => Array.from(row, jsonElement));
  return readTensor({ shape, datatype: datatypeOf(port.type), data }, context);
}

const noLimits = { bytes: Infinity, tensors: Infinity, nodes: Infinity, rank: 16, depth: 64 };

function partOf(result: unknown, { name }: Port, isOnly: boolean): unknown {
  const isNamed =
    isPlainObject(result) && !isTensor(result) && Object.hasOwn(result as object, name);
  if (isNamed) {
    return (result as Readonly<Record<string, unknown>>)[name];
  }
  return isOnly ? result : refuse(`a result has no "${name}"`);
}

function elementsOf(value: unknown, port: Port): ArrayLike<unknown> {
  if (port.type === 'string' && isUint8Array(value)) {
    return [value];
  }
  if (isTensor(value)) {
    checkType(port, value);
    return checkTensor(value, port.name).data;
  }
  if (ArrayBuffer.isView(value) && 'length' in value) {
    return value as unknown as ArrayLike<unknown>;
  }
  return Array.isArray(value) ? (value.flat(Infinity) as unknown[]) : [value];
}

/** The element count determines the one open size. */
function rowShape({ shape }: Port, elements: number): readonly number[] {
  const row = shape.slice(1);
  const fixed = row.filter((size) => size !== -1).reduce((product, size) => product * size, 1);
  return row.map((size) => (size === -1 ? Math.trunc(elements / fixed) || 0 : size));
}

/** Rows of different lengths may have the right sum. */
function checkLengths(
  { name, shape }: Port,
  rows: readonly ArrayLike<unknown>[],
  [, ...sizes]: readonly number[],
): void {
  const length = sizes.reduce((product, size) => product * size, 1);
  const odd = rows.findIndex((row) => row.length !== length);
  if (odd !== -1) {
    refuse(
      `row ${odd} of "${name}" has ${rows[odd]!.length} elements, and ` +
        (odd === 0 ? `[${shape.slice(1).join(', ')}] is declared` : `the first row has ${length}`),
    );
  }
}

/** Undefined unless all are typed arrays of the tensor's class. */
function joinedArrays(
  { type }: Port,
  rows: readonly ArrayLike<unknown>[],
  shape: readonly number[],
): TensorType | undefined {
  const storage = storageClasses.get(type);
  const isOwn = (row: ArrayLike<unknown>): boolean =>
    ArrayBuffer.isView(row) &&
    (row as { [Symbol.toStringTag]?: string })[Symbol.toStringTag] === storage?.name;
  if (!storage || !rows.every(isOwn)) {
    return undefined;
  }
  const data = new storage(rows.reduce((sum, row) => sum + row.length, 0));
  let at = 0;
  for (const row of rows) {
    (data as { set(row: unknown, at: number): void }).set(row, at);
    at += row.length;
  }
  return new Tensor(type, data, shape);
}

function jsonElement(element: unknown): unknown {
  if (typeof element === 'number') {
    return Number.isFinite(element) ? element : wordOfNumber(element);
  }
  return typeof element === 'bigint' ? element.toString() : element;
}

function refuse(what: string): never {
  throw new TypeError(what);
}

/**
 * Keeps the requested order; all by default.
 *
 * @throws InvalidInputError for an output that the model lacks
 */
export function chosenOutputs(
  model: string,
  tensors: Tensors,
  chosen: ReadonlyMap<string, Parameters> | undefined,
): Tensors {
  if (!chosen) {
    return tensors;
  }
  return new Map(
    Array.from(chosen.keys(), (name) => {
      const tensor = tensors.get(name);
      if (!tensor) {
        throw unknownOutput(model, name, [...tensors.keys()]);
      }
      return [name, tensor] as const;
    }),
  );
}

export function unknownOutput(
  model: string,
  name: string,
  known: readonly string[],
): InvalidInputError {
  return new InvalidInputError(
    `Model "${model}" has no output "${name}"; it has ${known.join(', ')}`,
  );
}

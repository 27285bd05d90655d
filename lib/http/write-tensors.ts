import type { Tensor } from 'onnxruntime-common';
import { isTensor } from '../batch/tensor.js';
import { InvalidOutputError, messageOf } from '../errors.js';
import type { Json } from '../json/json.js';
import { type Elements, elementByType, typeByArray } from '../json/element-types.js';
import { tensorToJson, type TensorForm, writeTensor } from '../json/json-tensor.js';

/** Limit for levels of nesting. JSON refuses what holds itself. */
const MAX_DEPTH = 500;

/**
 * The value with its tensors, typed arrays and bigints as `readJson` reads them, and all other parts
 * as they are. A value without any of them is returned itself. Others are copied with their class,
 * which interceptors may ask for.
 *
 * @throws InvalidOutputError for a tensor whose data and shape do not belong together
 */
export function writeTensors(value: unknown, form: TensorForm, depth = 0): unknown {
  if (typeof value === 'bigint') {
    return { $bigint: value.toString() };
  }
  if (typeof value !== 'object' || value === null || depth > MAX_DEPTH) {
    return value;
  }
  if (isTensor(value)) {
    return { $tensor: writeTensorOf(value, form) };
  }
  if (hasOwnForm(value)) {
    return writeTensors(value.toJSON(), form, depth + 1);
  }
  if (ArrayBuffer.isView(value)) {
    return writeArray(value, form);
  }
  return Array.isArray(value)
    ? writeList(value, form, depth + 1)
    : writeParts(value as Record<string, unknown>, form, depth + 1);
}

function writeTensorOf(tensor: Tensor, form: TensorForm): Json {
  try {
    return tensorToJson(tensor, form);
  } catch (cause) {
    // The client is not at fault.
    throw new InvalidOutputError(`The reply cannot be written as JSON: ${messageOf(cause)}`, {
      cause,
    });
  }
}

/** True for a Date, a Buffer, and every other object that JSON asks for its form. */
function hasOwnForm(value: object): value is { toJSON(): unknown } {
  return 'toJSON' in value && typeof value.toJSON === 'function';
}

function writeArray(array: ArrayBufferView, form: TensorForm): unknown {
  const name = (array as { [Symbol.toStringTag]?: string })[Symbol.toStringTag];
  const type = name === undefined ? undefined : typeByArray.get(name);
  if (type === undefined) {
    return array;
  }
  const { buffer, byteOffset, length } = array as Elements;
  const data = new (elementByType.get(type)!.storage)(buffer, byteOffset, length);
  return { $tensor: writeTensor({ type, dims: [length], data }, form) };
}

function writeList(list: readonly unknown[], form: TensorForm, depth: number): unknown {
  let copy: unknown[] | undefined;
  for (let i = 0; i < list.length; i++) {
    const part = list[i];
    const written = isPlain(part) ? part : writeTensors(part, form, depth);
    if (written !== part) {
      copy ??= [...list];
      copy[i] = written;
    }
  }
  return copy ?? list;
}

function writeParts(value: Record<string, unknown>, form: TensorForm, depth: number): unknown {
  let copy: object | undefined;
  for (const name of Object.keys(value)) {
    const part = value[name];
    const written = isPlain(part) ? part : writeTensors(part, form, depth);
    if (written !== part) {
      copy ??= copyOf(value);
      Object.defineProperty(copy, name, { value: written, enumerable: true });
    }
  }
  return copy ?? value;
}

/** Most parts are, and replies may have many. */
function isPlain(part: unknown): boolean {
  return typeof part !== 'object' && typeof part !== 'bigint';
}

/** An object of the same class with the same properties, each a value. */
function copyOf(value: Record<string, unknown>): object {
  const parts = Object.entries(value).map(([name, part]) => [
    name,
    { value: part, enumerable: true, configurable: true, writable: true },
  ]);
  return Object.create(
    Object.getPrototypeOf(value) as object | null,
    Object.fromEntries(parts) as PropertyDescriptorMap,
  ) as object;
}

import type { Tensor } from 'onnxruntime-common';
import { isTensor } from '../batch/tensor.js';
import { InvalidOutputError, messageOf } from '../errors.js';
import { type Elements, elementByType, typeByArray } from './element-types.js';
import type { Json } from './read-json.js';
import { tensorToJson, type TensorForm, writeTensor } from './json-tensor.js';

/**
 * Writes tensors, typed arrays and bigints for `readJson`. A value without any is returned
 * uncopied; copies keep their class, which interceptors may check.
 *
 * @throws InvalidOutputError for a tensor with mismatched data and shape
 */
export function writeTensors(value: unknown, form: TensorForm): unknown {
  return new TensorWriter(form).write(value);
}

class TensorWriter {
  /** The objects around the current part. */
  private readonly holders = new Set<object>();

  constructor(private readonly form: TensorForm) {}

  write(value: unknown): unknown {
    switch (typeof value) {
      case 'bigint':
        return { $bigint: value.toString() };
      case 'object':
        return value === null ? null : this.writeObject(value);
      default:
        return value;
    }
  }

  private writeObject(value: object): unknown {
    if (isTensor(value)) {
      return { $tensor: this.writeTensor(value) };
    }
    if (ArrayBuffer.isView(value) && !hasOwnForm(value)) {
      return this.writeArray(value);
    }
    // JSON refuses circular references.
    if (this.holders.has(value)) {
      return value;
    }
    this.holders.add(value);
    const written = this.writeHolder(value);
    this.holders.delete(value);
    return written;
  }

  private writeHolder(value: object): unknown {
    if (hasOwnForm(value)) {
      return this.write(value.toJSON());
    }
    return Array.isArray(value)
      ? this.writeList(value)
      : this.writeParts(value as Record<string, unknown>);
  }

  private writeTensor(tensor: Tensor): Json {
    try {
      return tensorToJson(tensor, this.form);
    } catch (cause) {
      // The client is not at fault.
      throw new InvalidOutputError(`The reply cannot be written as JSON: ${messageOf(cause)}`, {
        cause,
      });
    }
  }

  private writeArray(array: ArrayBufferView): unknown {
    const name = (array as { [Symbol.toStringTag]?: string })[Symbol.toStringTag];
    const type = name === undefined ? undefined : typeByArray.get(name);
    if (type === undefined) {
      return array;
    }
    const { buffer, byteOffset, length } = array as Elements;
    const data = new (elementByType.get(type)!.storage)(buffer, byteOffset, length);
    return { $tensor: writeTensor({ type, dims: [length], data }, this.form) };
  }

  private writeList(list: readonly unknown[]): unknown {
    let copy: unknown[] | undefined;
    for (let i = 0; i < list.length; i++) {
      const written = this.write(list[i]);
      if (!Object.is(written, list[i])) {
        copy ??= [...list];
        copy[i] = written;
      }
    }
    return copy ?? list;
  }

  private writeParts(value: Record<string, unknown>): unknown {
    let copy: object | undefined;
    for (const name of Object.keys(value)) {
      const part = value[name];
      const written = this.write(part);
      if (!Object.is(written, part)) {
        copy ??= copyOf(value);
        Object.defineProperty(copy, name, { value: written });
      }
    }
    return copy ?? value;
  }
}

/** True for objects such as a Date or a Buffer. */
function hasOwnForm(value: object): value is { toJSON(): unknown } {
  return 'toJSON' in value && typeof value.toJSON === 'function';
}

/** Keeps the class and turns accessors into values. */
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

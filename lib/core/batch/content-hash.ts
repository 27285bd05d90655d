import { createHash } from 'node:crypto';
import { types } from 'node:util';
import type { Tensor } from 'onnxruntime-common';
import { Batch } from './batch.js';
import { isPlainObject, MAX_DEPTH } from './container.js';
import { isTensor } from './tensor.js';
import { InvalidInputError } from '../errors.js';
import { typeName } from '../format.js';

/**
 * A SHA-256 hash, equal for equal values: tensors (type, shape, elements), typed arrays, batches
 * (rows, key, padding), lists, plain objects, Map, Set, Date and primitives. Order in objects, Map
 * and Set does not count.
 *
 * @throws InvalidInputError for functions, symbols, instances of other classes and cyclic values
 */
export function contentHash(input: unknown): string {
  return new Content().add(input, 0).digest();
}

/** Writes each value's length or an end mark: different values never write the same bytes. */
class Content {
  private readonly hash = createHash('sha256');
  /** One large update costs much less than many small ones. */
  private text = '';

  digest(): string {
    this.flush();
    return this.hash.digest('base64url');
  }

  add(value: unknown, depth: number): this {
    switch (typeof value) {
      case 'string':
        return this.write(`s${value.length}:${value}`);
      case 'number':
        return this.write(Object.is(value, -0) ? 'd-0;' : `d${value};`);
      case 'bigint':
        return this.write(`i${value};`);
      case 'boolean':
      case 'undefined':
        return this.write(`${value};`);
      case 'object':
        return value === null ? this.write('null;') : this.addObject(value, depth + 1);
      default:
        throw cannotCompare(typeName(value));
    }
  }

  private addObject(value: object, depth: number): this {
    if (depth > MAX_DEPTH) {
      throw refusal(`is nested deeper than ${MAX_DEPTH} levels, or holds itself`);
    }
    if (Array.isArray(value)) {
      return this.addList(value, depth);
    }
    if (isPlainObject(value)) {
      return this.addEntries(value, depth);
    }
    if (value instanceof Batch) {
      return this.addBatch(value, depth);
    }
    if (isTensor(value)) {
      return this.addTensor(value);
    }
    if (ArrayBuffer.isView(value)) {
      return this.addBytes(value, Object.prototype.toString.call(value));
    }
    if (types.isAnyArrayBuffer(value)) {
      return this.addBytes(new Uint8Array(value), 'buffer');
    }
    if (types.isDate(value)) {
      return this.write(`date${value.getTime()};`);
    }
    if (types.isMap(value) || types.isSet(value)) {
      const entries = [...value].map((entry: unknown) => new Content().add(entry, depth).digest());
      return this.write(
        `${types.isMap(value) ? 'map' : 'set'}${entries.length}:${entries.toSorted().join('')}`,
      );
    }
    throw cannotCompare(typeName(value));
  }

  private addList(list: readonly unknown[], depth: number): this {
    if (isOfNumbers(list)) {
      return this.addBytes(Float64Array.from(list), 'numbers');
    }
    this.write(`list${list.length}:`);
    for (let i = 0; i < list.length; i++) {
      if (i in list) {
        this.add(list[i], depth);
      } else {
        this.write('hole;');
      }
    }
    return this;
  }

  private addEntries(object: object, depth: number): this {
    if (Object.getOwnPropertySymbols(object).length > 0) {
      throw cannotCompare('an entry named by a symbol');
    }
    const entries = Object.entries(object).toSorted(([a], [b]) => (a < b ? -1 : 1));
    this.write(`object${entries.length}:`);
    entries.forEach(([name, value]) => this.add(name, depth).add(value, depth));
    return this;
  }

  private addTensor({ type, dims, data }: Tensor): this {
    const kind = `${type}[${dims.join()}]`;
    return Array.isArray(data)
      ? this.write(`tensor ${kind}`).addList(data, 0)
      : this.addBytes(data, `tensor ${kind}`);
  }

  private addBatch(batch: Batch, depth: number): this {
    this.write('batch').add(batch.key, depth).add(batch.padding, depth).add(batch.signature, depth);
    // Not consume(), which always copies.
    return batch.size === 0 ? this : this.add(batch.release(), depth);
  }

  private addBytes({ buffer, byteOffset, byteLength }: ArrayBufferView, kind: string): this {
    this.write(`${kind} ${byteLength}:`).flush();
    this.hash.update(new Uint8Array(buffer, byteOffset, byteLength));
    return this;
  }

  private write(text: string): this {
    this.text += text;
    return this;
  }

  private flush(): void {
    // Not UTF-8, which has the same bytes for all lone surrogates.
    this.hash.update(this.text, 'utf16le');
    this.text = '';
  }
}

function isOfNumbers(list: readonly unknown[]): list is readonly number[] {
  for (let i = 0; i < list.length; i++) {
    if (typeof list[i] !== 'number') {
      return false;
    }
  }
  return true;
}

function cannotCompare(part: string): Error {
  return refusal(`holds ${part}, which has no content to compare by`);
}

function refusal(fault: string): Error {
  return new InvalidInputError(
    `The input ${fault}; give the serving a key to compare by: deduplication.key: (input) => ` +
      'contentHash(...)',
  );
}

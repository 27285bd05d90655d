import * as fc from 'fast-check';
import type { Arbitrary } from 'fast-check';
import { Batch } from 'nestjs-serving';
import { Tensor } from 'onnxruntime-common';
import { Observable, of } from 'rxjs';
import { jsonText, names } from './hostile-json.js';

/** A value that is made anew for every call, since a call may use it up, and words for it. */
export interface Recipe {
  make(): unknown;
  readonly words: string;
}

const throws = (): never => {
  throw new TypeError('thrown by the input');
};
const recipe = (words: string, make: () => unknown): Recipe => ({ words, make });
const nested = (levels: number, inner: unknown, around: (value: unknown) => unknown): unknown => {
  let value = inner;
  for (let i = 0; i < levels; i++) {
    value = around(value);
  }
  return value;
};
const floats = (...dims: number[]): Tensor =>
  new Tensor('float32', new Float32Array(dims.reduce((a, b) => a * b, 1)), dims);
const detached = (): Float32Array => {
  const view = new Float32Array(4);
  structuredClone(view, { transfer: [view.buffer] });
  return view;
};

/** Objects that answer, when they are read, with something else than a value. */
const traps: readonly Recipe[] = [
  recipe('a getter that throws', () =>
    Object.defineProperty({}, 'x', { get: throws, enumerable: true }),
  ),
  recipe('an inner getter that throws', () => ({
    a: 1,
    b: Object.defineProperty({}, 'x', { get: throws, enumerable: true }),
  })),
  recipe(
    'a proxy whose traps throw',
    () => new Proxy({}, { get: throws, has: throws, ownKeys: throws, getPrototypeOf: throws }),
  ),
  recipe('a list behind a proxy that throws', () => new Proxy([1], { get: throws })),
  recipe('a revoked proxy', () => {
    const { proxy, revoke } = Proxy.revocable({}, {});
    revoke();
    return proxy;
  }),
  recipe(
    'an object behind such a prototype',
    () =>
      Object.create(new Proxy({}, { get: throws, has: throws, getPrototypeOf: throws })) as unknown,
  ),
  recipe('what would not be a text', () => ({
    toString: throws,
    valueOf: throws,
    [Symbol.toPrimitive]: throws,
  })),
  recipe('a shifty tensor', () => {
    let reads = 0;
    const shifty = { type: 'float32', data: new Float32Array(4), size: 4 };
    return Object.defineProperty(shifty, 'dims', {
      get: () => (reads++ % 3 === 0 ? [1, 4] : [1000, 4]),
      enumerable: true,
    });
  }),
  recipe('a tensor whose data throws', () =>
    Object.defineProperty(floats(1, 4), 'data', { get: throws }),
  ),
  recipe('a tensor on another device', () =>
    Tensor.fromGpuBuffer({} as never, { dims: [1, 4], dataType: 'float32' }),
  ),
];

/** Objects without end, or of a size that they do not show. */
const giants: readonly Recipe[] = [
  recipe('a list that holds itself', () => {
    const list: unknown[] = [];
    list.push(list);
    return list;
  }),
  recipe('an object that holds itself', () => {
    const object: Record<string, unknown> = { x: floats(1, 4) };
    object['self'] = object;
    return object;
  }),
  recipe('60 levels of the same two lists', () =>
    nested(60, floats(1, 4), (value) => [value, value]),
  ),
  recipe('60 levels of the same two plain lists', () => nested(60, 1, (value) => [value, value])),
  recipe('lists of 20 000 levels', () => nested(20_000, [], (value) => [value])),
  recipe('objects of 20 000 levels', () => nested(20_000, {}, (value) => ({ a: value }))),
  recipe('lists of 3000 levels', () => nested(3000, [], (value) => [value])),
  recipe('maps of 3000 levels', () => nested(3000, 1, (value) => new Map([[value, 1]]))),
  recipe('a tensor 100 levels deep', () => nested(100, floats(1, 4), (value) => [value])),
  recipe('a nearly endless list', () => {
    const list: unknown[] = [];
    list.length = 2 ** 32 - 1;
    return list;
  }),
  recipe('a nearly endless list of batches', () => {
    const list: unknown[] = [Batch.stack([1])];
    list.length = 2 ** 32 - 1;
    return list;
  }),
  recipe('2000 tensors', () => Array.from({ length: 2000 }, () => floats(1, 4))),
  recipe('20 000 names', () =>
    Object.fromEntries(Array.from({ length: 20_000 }, (_, i) => [`name ${i}`, i])),
  ),
  recipe('a long name', () => ({ ['n'.repeat(100_000)]: floats(1, 4) })),
  recipe('a thousand axes', () => ({
    type: 'float32',
    dims: Array(1000).fill(1),
    data: new Float32Array(1),
    size: 1,
  })),
  recipe(
    'a tensor of no elements and endless axes',
    () => new Tensor('float32', new Float32Array(0), [2 ** 40, 0, 2 ** 40]),
  ),
];

/** Things of the platform that are no data. */
const things: readonly Recipe[] = [
  recipe('a function', () => () => 1),
  recipe('a symbol', () => Symbol('row')),
  recipe('a promise', () => Promise.resolve(1)),
  recipe('a regular expression', () => /x/u),
  recipe('a date', () => new Date(NaN)),
  recipe('a map', () => new Map([[{}, new Set([1])]])),
  recipe('a weak map', () => new WeakMap()),
  recipe('an error', () => new RangeError('an error that is an input')),
  recipe('a port', () => new MessageChannel().port1.unref()),
  recipe('memory that is gone', detached),
  recipe('a tensor in memory that is gone', () => ({
    type: 'float32',
    dims: [1, 4],
    data: detached(),
    size: 4,
  })),
  recipe(
    'memory that can shrink',
    () =>
      new Float32Array(
        new (ArrayBuffer as never as new (...args: unknown[]) => ArrayBuffer)(16, {
          maxByteLength: 64,
        }),
      ),
  ),
  recipe(
    'shared memory',
    () => new Tensor('float32', new Float32Array(new SharedArrayBuffer(16)), [1, 4]),
  ),
  recipe('no batch', () => Object.create(Batch.prototype) as unknown),
  recipe('an empty batch', () => Batch.empty()),
  recipe('a batch of functions', () => Batch.ofValues([1, () => 2])),
  recipe('a batch of tensors as values', () =>
    Batch.ofValues([
      floats(1, 4),
      { type: 'float32', dims: [9], data: new Float32Array(1), size: 1 },
    ]),
  ),
  recipe('a batch of 20 000 rows', () => Batch.stack(Array.from({ length: 20_000 }, (_, i) => i))),
  recipe('a batch with a strange key', () => Batch.stack([1]).withKey('__proto__')),
  recipe('a batch with padding', () => Batch.concatenate([floats(1, 4)]).pad(2 ** 40)),
  recipe('an iterable without an iterator', () => ({ [Symbol.asyncIterator]: () => undefined })),
  recipe('an iterator that gives no steps', () => ({
    [Symbol.asyncIterator]: () => ({ next: () => 'step' }),
  })),
  recipe('an observable of nothing', () => new Observable((subscriber) => subscriber.complete())),
  recipe('an observable of functions', () =>
    of(
      () => 1,
      () => 2,
    ),
  ),
  recipe('an empty sequence', () => [][Symbol.iterator]()),
];

const elementTypes = fc.constantFrom(
  'float32',
  'float64',
  'int64',
  'uint8',
  'bool',
  'string',
  'float16',
  'uint4',
  'constructor',
  'float9',
);
const storages: readonly ((length: number) => object)[] = [
  (length) => new Float32Array(length),
  (length) => new Float64Array(length),
  (length) => new BigInt64Array(length),
  (length) => new Uint8Array(length),
  (length) => new Uint16Array(length),
  (length) => new Int32Array(length),
  (length) => new Uint8ClampedArray(length),
  (length) => new DataView(new ArrayBuffer(length)),
  (length) => Array(length).fill('a') as string[],
];
const axes = fc.oneof(
  fc.constantFrom(0, 1, 2, 3, 4, 784, -0, -1, 0.5, NaN, Infinity, 2 ** 32, 2 ** 53, 1e308),
  fc.constantFrom<unknown>('1', null, {}, 1n),
);

/** What could pass for a tensor: true, nearly true, or not at all. */
const tensorLike: Arbitrary<Recipe> = fc
  .record({
    type: elementTypes,
    dims: fc.array(axes, { maxLength: 4 }),
    length: fc.constantFrom(0, 1, 2, 4, 784),
    storage: fc.constantFrom(...storages),
    size: fc.nat(4),
  })
  .map(({ type, dims, length, storage, size }) => {
    const { name } = storage(0).constructor;
    const words = `{ type: ${type}, dims: ${fc.stringify(dims)}, data: ${name} of ${length}, size: ${size} }`;
    return recipe(words, () => ({ type, dims: [...dims], data: storage(length), size }));
  });

const json: Arbitrary<Recipe> = jsonText.map((text) =>
  recipe(
    `JSON ${text.length > 200 ? `${text.slice(0, 200)}... of ${text.length} characters` : text}`,
    () => {
      try {
        return JSON.parse(text) as unknown;
      } catch {
        return text;
      }
    },
  ),
);

const leaf: Arbitrary<Recipe> = fc.oneof(
  fc.constantFrom(...traps),
  fc.constantFrom(...giants),
  fc.constantFrom(...things),
  tensorLike,
  json,
  fc
    .constantFrom<unknown>(undefined, null, NaN, -0, 2n ** 64n, '', '\ud800')
    .map((value) => recipe(fc.stringify(value), () => value)),
);

/** Any value of JavaScript that a caller could have built to do harm. */
export const hostileValue: Arbitrary<Recipe> = fc.letrec<{ value: Recipe }>((tie) => ({
  value: fc.oneof(
    { depthSize: 'small', withCrossShrink: true },
    { arbitrary: leaf, weight: 6 },
    fc
      .array(tie('value'), { maxLength: 4 })
      .map((parts) =>
        recipe(`[${parts.map(({ words }) => words).join()}]`, () =>
          parts.map((part) => part.make()),
        ),
      ),
    fc
      .array(fc.tuple(names, tie('value')), { maxLength: 4 })
      .map((parts) =>
        recipe(
          `{${parts.map(([name, { words }]) => `${JSON.stringify(name)}: ${words}`).join()}}`,
          () => objectOf(parts),
        ),
      ),
  ),
})).value;

/**
 * Also with a name such as `__proto__` as a name of its own; but no promise that is never kept,
 * with which nobody can be answered.
 */
function objectOf(parts: readonly (readonly [string, Recipe])[]): object {
  const object = {};
  for (const [name, part] of parts) {
    const value = part.make();
    if (name !== 'then' || typeof value !== 'function') {
      Object.defineProperty(object, name, {
        value,
        enumerable: true,
        configurable: true,
        writable: true,
      });
    }
  }
  return object;
}

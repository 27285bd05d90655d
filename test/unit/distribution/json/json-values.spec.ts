import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import {
  Batch,
  InvalidInputError,
  InvalidOutputError,
  OverloadedError,
  Tensor,
} from 'nestjs-serving';
import type { TensorForm } from '../../../../lib/encoding/json-tensor.js';
import { ReadContext, readJson } from '../../../../lib/encoding/json.js';
import { writeJson } from '../../../../lib/extensions/distribution/json/json-handlers.js';
import {
  defaultWireLimits,
  type WireLimits,
} from '../../../../lib/extensions/distribution/wire/limits.js';
import { plainly } from '../../../fixtures/cluster/json-values.js';
import { sixOfEachType } from '../../../fixtures/values/tensors.js';
import { tensors, typedArrays, values } from '../../../fixtures/cluster/wire-values.js';

const read = (json: unknown, limits: Partial<WireLimits> = {}) =>
  readJson(
    json,
    new ReadContext({
      limits: { ...defaultWireLimits, ...limits },
      name: 'input',
      source: 'the message',
    }),
  );
const write = (value: unknown, form: TensorForm = 'base64') =>
  writeJson(value, form, defaultWireLimits);

/** The value after writing and reading as JSON. */
const cross = (value: unknown, form: TensorForm): unknown =>
  read(JSON.parse(JSON.stringify(write(value, form))));

const forms = fc.constantFrom<TensorForm>('base64', 'list');

const tensorOf = (datatype: string, shape: unknown, data: unknown) => ({
  $tensor: { shape, datatype, data },
});
const nested = (levels: number): unknown =>
  Array.from({ length: levels }).reduce((inner) => [inner], 1);

describe('JSON values', () => {
  it('[11] Tensors of all types are written and read in both forms', () => {
    fc.assert(
      fc.property(tensors, forms, (tensor, form) =>
        expect(plainly(cross(tensor, form))).toEqual(plainly(tensor)),
      ),
      {
        numRuns: 1000,
      },
    );
  });

  it.each(sixOfEachType.map((tensor) => [tensor.type, tensor] as const))(
    '[11] A tensor of %s is written and read',
    (_, tensor) => {
      expect(cross(tensor, 'base64')).toEqual(tensor);
      expect(cross(tensor, 'list')).toEqual(plainly(tensor));
    },
  );

  it('[11] Each type has its name in the Open Inference Protocol', () => {
    const names = sixOfEachType.map((tensor) => {
      const { $tensor } = write(tensor) as { $tensor: { datatype: string } };
      return [tensor.type, $tensor.datatype];
    });

    expect(Object.fromEntries(names)).toEqual({
      bool: 'BOOL',
      uint8: 'UINT8',
      uint16: 'UINT16',
      uint32: 'UINT32',
      uint64: 'UINT64',
      int8: 'INT8',
      int16: 'INT16',
      int32: 'INT32',
      int64: 'INT64',
      float16: 'FP16',
      float32: 'FP32',
      float64: 'FP64',
      string: 'BYTES',
      // The protocol has no names for these.
      uint4: 'UINT4',
      int4: 'INT4',
    });
  });

  it('[11] A list of elements may be nested like the shape', () => {
    expect(read(tensorOf('INT8', [2, 1, 2], [[[1, 2]], [[3, 4]]]))).toEqual(
      new Tensor('int8', [1, 2, 3, 4], [2, 1, 2]),
    );
    expect(read(tensorOf('BYTES', [1, 2], [['a', 'b']]))).toEqual(
      new Tensor('string', ['a', 'b'], [1, 2]),
    );
    expect(read(tensorOf('FP32', [2, 0], [[], []]))).toEqual(new Tensor('float32', [], [2, 0]));
    expect(read(tensorOf('FP32', [0, 2], []))).toEqual(new Tensor('float32', [], [0, 2]));
  });

  it('[11] Typed arrays are written as tensors with one axis', () => {
    fc.assert(
      fc.property(typedArrays, forms, (array, form) =>
        expect(plainly(cross(array, form))).toEqual(plainly(array)),
      ),
    );
  });

  it('[11] All other values are written as in JSON', () => {
    fc.assert(
      fc.property(values, forms, (value, form) =>
        expect(plainly(cross(value, form))).toEqual(plainly(value)),
      ),
    );
  });

  it('[11] Each value is written as the manual shows', () => {
    const floats = new Tensor('float32', Float32Array.of(1, NaN, -0), [1, 3]);
    const long = new Tensor('int64', BigInt64Array.of(1n, 2n ** 53n), [2]);

    expect(write({ floats, long }, 'base64')).toEqual({
      floats: tensorOf('FP32', [1, 3], 'AACAPwAAwH8AAACA'),
      long: tensorOf('INT64', [2], 'AQAAAAAAAAAAAAAAAAAgAA=='),
    });
    expect(write({ floats, long }, 'list')).toEqual({
      floats: tensorOf('FP32', [1, 3], [1, 'NaN', '-0']),
      long: tensorOf('INT64', [2], [1, '9007199254740992']),
    });
    expect(
      write(
        [Uint8Array.of(1, 2), 7n, NaN, -0, new Date(0), undefined, { gone: undefined }],
        'list',
      ),
    ).toEqual([
      tensorOf('UINT8', [2], [1, 2]),
      { $bigint: '7' },
      { $number: 'NaN' },
      { $number: '-0' },
      '1970-01-01T00:00:00.000Z',
      null,
      {},
    ]);
    expect(
      write([new Tensor('bool', [true, false], [2]), new Tensor('string', ['ä'], [1])]),
    ).toEqual([tensorOf('BOOL', [2], [true, false]), tensorOf('BYTES', [1], ['ä'])]);
    expect(write(undefined)).toBeNull();
  });

  it('[11] An error is written without details that strangers must not read', () => {
    const error = new OverloadedError('full', { retryAfter: 2, cause: new TypeError('secret') });

    expect(write([error, new InvalidInputError('7 is no image'), new TypeError('why')])).toEqual([
      {
        name: 'OverloadedError',
        code: 'SERVING_OVERLOADED',
        statusCode: 503,
        message: 'Service Unavailable',
        retryAfter: 2,
      },
      {
        name: 'InvalidInputError',
        code: 'SERVING_INVALID_INPUT',
        statusCode: 400,
        message: '7 is no image',
      },
      { name: 'Error', code: 'INTERNAL', statusCode: 500, message: 'Internal Server Error' },
    ]);
  });

  it('[11] Names that look like tags, and other names with a $, are kept', () => {
    const value = { $tensor: 1, $$number: { $bigint: 'x' }, $price: 3, $$x: 4, $: 5 };

    expect(write(value)).toEqual({
      $$tensor: 1,
      $$$number: { $$bigint: 'x' },
      $price: 3,
      $$x: 4,
      $: 5,
    });
    expect(cross(value, 'list')).toEqual(value);
  });

  it.each<[string, unknown]>([
    ['a function', { f: () => 1 }],
    ['an instance of a class', [new Map()]],
    ['a batch', { batch: Batch.ofValues([1]) }],
  ])('[11] An output with %s is refused', (_, output) => {
    expect(() => write(output)).toThrow(InvalidOutputError);
  });
});

describe('JSON values from a stranger', () => {
  it.each<[string, unknown, string]>([
    [
      'an unknown type',
      tensorOf('float128', [1], [1]),
      '"input.$tensor.datatype" in the message is "float128"; allowed are BOOL, UINT8, UINT16',
    ],
    [
      'the type of a Tensor',
      tensorOf('float32', [1], [1]),
      '"input.$tensor.datatype" in the message is "float32"; allowed are BOOL',
    ],
    [
      'a type named like an object member',
      tensorOf('constructor', [1], [1]),
      '"input.$tensor.datatype" in the message is "constructor"',
    ],
    [
      'a tensor of JSON',
      tensorOf('json', [1], [1]),
      '"input.$tensor.datatype" in the message is "json"',
    ],
    [
      'an invalid tensor',
      { $tensor: [1, 2] },
      '"input.$tensor" in the message is an instance of Array, and must be a plain object',
    ],
    [
      'an unknown field of a tensor',
      { a: { $tensor: { shape: [], datatype: 'BOOL', data: [true], dims: [] } } },
      '"input.a.$tensor" in the message has "dims"; a tensor has shape, datatype and data',
    ],
    [
      'no shape',
      { $tensor: { datatype: 'FP32', data: [1] } },
      '"input.$tensor.shape" in the message is undefined; give a list',
    ],
    [
      'too many axes',
      tensorOf('FP32', Array(17).fill(1), [1]),
      '"input.$tensor.shape" in the message',
    ],
    [
      'an axis below 0',
      tensorOf('FP32', [-1], []),
      '"input.$tensor.shape.0" in the message is -1; give whole numbers from 0 to 2 ** 32 - 1',
    ],
    [
      'an axis that is no number',
      [tensorOf('FP32', [1, '1'], [1])],
      '"input.0.$tensor.shape.1" in the message is "1"',
    ],
    [
      'less data than its shape',
      tensorOf('FP32', [2, 3], [1, 2, 3, 4, 5]),
      '"input.$tensor.data" in the message has 5 elements',
    ],
    [
      'a nested list that is too short',
      tensorOf('FP32', [2, 2], [[1, 2], [3]]),
      '"input.$tensor.data.1" in the message is [ 3 ]; for the shape [ 2, 2 ], give one flat list, or here a list of 2',
    ],
    [
      'too few nested lists',
      tensorOf('FP32', [2, 2], [[1, 2]]),
      '"input.$tensor.data" in the message is [ [ 1, 2 ] ]; for the shape [ 2, 2 ]',
    ],
    [
      'a number beside nested lists',
      tensorOf('FP32', [2, 2], [[1, 2], 3, 4]),
      '"input.$tensor.data" in the message is [ [ 1, 2 ], 3, 4 ]; for the shape [ 2, 2 ]',
    ],
    [
      'a number in place of a nested list',
      tensorOf('FP32', [2, 2], [[1, 2], 3]),
      '"input.$tensor.data.1" in the message is 3; for the shape [ 2, 2 ]',
    ],
    [
      'lists that are nested for some axes alone',
      tensorOf(
        'INT8',
        [2, 1, 2],
        [
          [1, 2],
          [3, 4],
        ],
      ),
      '"input.$tensor.data.0" in the message is [ 1, 2 ]; for the shape [ 2, 1, 2 ]',
    ],
    [
      'lists that are nested deeper than the shape',
      tensorOf('INT8', [2], [[1], [2]]),
      '"input.$tensor.data.0" in the message is [ 1 ]; INT8 holds',
    ],
    [
      'lists in place of nested elements',
      tensorOf('INT8', [1, 2], [[[1], 2]]),
      '"input.$tensor.data.0.0" in the message is [ 1 ]; INT8 holds',
    ],
    [
      'an invalid element of a nested list',
      tensorOf(
        'INT8',
        [2, 2, 3],
        [
          [
            [1, 2, 3],
            [4, 5, 6],
          ],
          [
            [7, 8, 128],
            [1, 2, 3],
          ],
        ],
      ),
      '"input.$tensor.data.1.0.2" in the message is 128; INT8 holds',
    ],
    [
      'an endless shape',
      tensorOf('FP32', [2 ** 31, 2 ** 31, 2 ** 31], [1]),
      'has 1 elements, which are not those of the shape',
    ],
    [
      'an endless shape with base64',
      tensorOf('UINT8', [2 ** 31, 2 ** 31], 'AAAA'),
      'has 3 bytes of base64',
    ],
    [
      'base64 of another length',
      tensorOf('FP32', [1], 'AAAA'),
      '"input.$tensor.data" in the message has 3 bytes of base64',
    ],
    [
      'invalid base64',
      tensorOf('UINT8', [3], 'A!A!'),
      '"input.$tensor.data" in the message is a string, and no base64',
    ],
    [
      'truth values in base64',
      tensorOf('BOOL', [3], 'AAAA'),
      '"input.$tensor.data" in the message is "AAAA"; give a list',
    ],
    [
      'no data',
      { $tensor: { shape: [0], datatype: 'FP32' } },
      '"input.$tensor.data" in the message is undefined; give a list or base64',
    ],
    [
      'a hole',
      tensorOf('FP32', [2], [1, null]),
      '"input.$tensor.data.1" in the message is null; FP32 holds numbers in its range, "NaN", "Infinity"',
    ],
    [
      'a number that is out of range',
      tensorOf('INT8', [2], [127, 128]),
      '"input.$tensor.data.1" in the message is 128; INT8 holds whole numbers in its range',
    ],
    [
      'more than a byte for 4 bits',
      tensorOf('UINT4', [1], [256]),
      'is 256; UINT4 holds whole numbers from 0 to 255',
    ],
    [
      'a fraction among whole numbers',
      tensorOf('UINT32', [1], [1.5]),
      'is 1.5; UINT32 holds whole numbers in its range',
    ],
    ['a word in place of a number', tensorOf('FP64', [1], ['nan']), 'is "nan"; FP64 holds numbers'],
    [
      'NaN among whole numbers',
      tensorOf('INT32', [1], ['NaN']),
      'is "NaN"; INT32 holds whole numbers',
    ],
    [
      'a whole number that has lost digits',
      tensorOf('INT64', [1], [2 ** 53]),
      'is a number beyond 2 ** 53, which JSON has rounded; send it as a string of digits',
    ],
    [
      'a whole number of more than 64 bits',
      tensorOf('UINT64', [1], ['18446744073709551616']),
      'is "18446744073709551616"; UINT64 holds',
    ],
    ['a negative number without signs', tensorOf('UINT64', [1], [-1]), 'is -1; UINT64 holds'],
    [
      'a truth value that is a number',
      tensorOf('BOOL', [1], [1]),
      'is 1; BOOL holds true and false',
    ],
    [
      'an invalid string',
      tensorOf('BYTES', [2], ['a', 1]),
      '"input.$tensor.data.1" in the message is 1; BYTES holds strings',
    ],
    [
      'an invalid bigint',
      { x: { $bigint: '0x10' } },
      '"input.x.$bigint" in the message is "0x10"; give up to 1000 digits',
    ],
    ['an endless bigint', { $bigint: '1'.repeat(1001) }, '"input.$bigint" in the message'],
    ['a bigint that is a number', { $bigint: 1 }, '"input.$bigint" in the message is 1'],
    [
      'an unknown special number',
      { $number: 'one' },
      '"input.$number" in the message is "one"; allowed are "NaN"',
    ],
    [
      'a tensor with a name beside it',
      { x: 1, $tensor: {} },
      '"input" in the message has other names beside "$tensor"',
    ],
    [
      'the name __proto__',
      JSON.parse('{"a":{"__proto__":{"isAdmin":true}}}'),
      '"input.a.__proto__" in the message has a forbidden name',
    ],
    ['more depth than is allowed', nested(65), 'lies deeper than 64 levels'],
    [
      'a value outside of JSON',
      { f: () => 1 },
      '"input.f" in the message is a function, which is no JSON',
    ],
    ['an instance of a class', [new Map()], '"input.0" in the message is an instance of Map'],
  ])('[11] JSON is refused for %s', (_, json, message) => {
    expect(() => read(json)).toThrow(InvalidInputError);
    expect(() => read(json)).toThrow(message);
  });

  it('[11] JSON beyond the limits is refused before anything is made of it', () => {
    const one = tensorOf('FP64', [2], [1, 2]);

    expect(() => read([1, 2, 3], { nodes: 3 })).toThrow('has more than 3 parts');
    expect(() => read({ a: 1, b: [] }, { nodes: 2 })).toThrow('has more than 2 parts');
    expect(() => read([one, one], { tensors: 1 })).toThrow(
      '"input.1.$tensor" in the message is where the message has more than 1 tensors',
    );
    expect(() => read([one, one], { bytes: 31 })).toThrow(
      '"input.1.$tensor.data" in the message is where the message has more than 31 bytes',
    );
    expect(() => read(tensorOf('UINT8', [6], 'AAAAAAAA'), { bytes: 5 })).toThrow(
      'more than 5 bytes',
    );
    expect(() => read(tensorOf('BYTES', [2], ['abc', 'def']), { bytes: 5 })).toThrow(
      'more than 5 bytes',
    );
    expect(() => read(tensorOf('FP32', [2, 1], [[1], [2]]), { bytes: 7 })).toThrow(
      'more than 7 bytes',
    );
    expect(() => read({ abc: 'def' }, { bytes: 5 })).toThrow('more than 5 bytes');
    expect(() => read(tensorOf('UINT8', [1, 1, 1], [1]), { rank: 2 })).toThrow(
      'give a list of up to 2 axes',
    );
    expect(read([one, one], { bytes: 32, tensors: 2, nodes: 5, rank: 1 })).toHaveLength(2);
    expect(read(nested(64))).toEqual(nested(64));
  });
});

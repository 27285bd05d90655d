import { expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { InvalidInputError, Tensor } from '../../../lib/index.js';
import { storageClasses } from '../../../lib/doors/values.js';
import { datatypeOf } from '../../../lib/encoding/json-tensor.js';
import { type JsonLimits, ReadContext } from '../../../lib/encoding/json.js';
import {
  type GrpcContents,
  type GrpcInferRequest,
  loadInferenceService,
} from '../../../lib/extensions/inference-protocol/wire/grpc-service.js';
import {
  fromGrpcTensors,
  toGrpcTensors,
} from '../../../lib/extensions/inference-protocol/wire/grpc-tensors.js';
import {
  bytesOfTensor,
  tensorOfBytes,
} from '../../../lib/extensions/inference-protocol/wire/tensor-bytes.js';

const limits: JsonLimits = { bytes: 1e6, tensors: 100, nodes: 1e5, rank: 8, depth: 16 };

function reading(): ReadContext {
  return new ReadContext({ limits, name: 'inputs', source: 'the request' });
}

const types = [...storageClasses.keys(), 'string'] as Tensor.Type[];

/** Tensors of every type and of up to four axes, with any bits as numbers. */
const tensors = fc
  .record({
    type: fc.constantFrom(...types),
    dims: fc.array(fc.nat(3), { maxLength: 4 }),
    seed: fc.uint8Array({ minLength: 1, maxLength: 64 }),
    text: fc.string({ unit: 'grapheme' }),
  })
  .map(({ type, dims, seed, text }) => {
    const count = dims.reduce((product, size) => product * size, 1);
    const storage = storageClasses.get(type);
    if (!storage) {
      return new Tensor(
        'string',
        Array.from({ length: count }, (_, i) => text.slice(i)),
        dims,
      );
    }
    const bytes = new Uint8Array(count * storage.BYTES_PER_ELEMENT).map(
      (_, i) => seed[i % seed.length]!,
    );
    const elements = type === 'bool' ? bytes.map((byte) => byte & 1) : bytes;
    return new Tensor(type, new storage(elements.buffer, 0, count), dims);
  });

it('The bytes of a tensor of any type are read as that tensor, at any offset', () => {
  fc.assert(
    fc.property(tensors, fc.nat(9), (tensor, offset) => {
      const bytes = bytesOfTensor(tensor);
      const shifted = new Uint8Array(offset + bytes.length);
      shifted.set(bytes, offset);

      const read = tensorOfBytes(
        datatypeOf(tensor.type),
        tensor.dims,
        shifted.subarray(offset),
        reading(),
      );

      expect(read.type).toBe(tensor.type);
      expect(read.dims).toEqual(tensor.dims);
      expect(bytesOfTensor(read)).toEqual(bytes);
    }),
  );
});

it('The bytes of numbers are a view of the tensor, and a tensor is a view of aligned bytes', () => {
  const tensor = new Tensor('float32', [1, 2, 3], [3]);

  const bytes = bytesOfTensor(tensor);
  const read = tensorOfBytes('FP32', [3], bytes, reading());

  expect(bytes.buffer).toBe(tensor.data.buffer);
  expect((read.data as Float32Array).buffer).toBe(bytes.buffer);
});

it('Tensors cross a gRPC message in raw bytes', async () => {
  const { service } = await loadInferenceService('The test');
  const { requestSerialize, requestDeserialize } = service['ModelInfer']!;
  fc.assert(
    fc.property(fc.array(tensors, { minLength: 1, maxLength: 4 }), (list) => {
      const byName = new Map(list.map((tensor, i) => [`input ${i}`, tensor]));
      const { tensors: inputs, raw } = toGrpcTensors(byName);
      const message = requestSerialize({ model_name: 'm', inputs, raw_input_contents: raw });

      const received = requestDeserialize(message) as GrpcInferRequest;
      const read = fromGrpcTensors(
        { tensors: received.inputs, raw: received.raw_input_contents },
        reading(),
      );

      expect([...read.keys()]).toEqual([...byName.keys()]);
      for (const [name, tensor] of byName) {
        expect(read.get(name)!.dims).toEqual(tensor.dims);
        expect(bytesOfTensor(read.get(name)!)).toEqual(bytesOfTensor(tensor));
      }
    }),
  );
});

it.each<[string, GrpcContents, Tensor]>([
  ['BOOL', { bool_contents: [true, false] }, new Tensor('bool', [true, false], [2])],
  ['INT8', { int_contents: [-128, 127] }, new Tensor('int8', [-128, 127], [2])],
  [
    'INT64',
    { int64_contents: ['-9223372036854775808', '1'] },
    new Tensor('int64', [-(2n ** 63n), 1n], [2]),
  ],
  ['UINT16', { uint_contents: [0, 65535] }, new Tensor('uint16', [0, 65535], [2])],
  [
    'UINT64',
    { uint64_contents: ['18446744073709551615', '0'] },
    new Tensor('uint64', [2n ** 64n - 1n, 0n], [2]),
  ],
  ['FP32', { fp32_contents: [NaN, 0.5] }, new Tensor('float32', [NaN, 0.5], [2])],
  ['FP64', { fp64_contents: [-Infinity, 1e300] }, new Tensor('float64', [-Infinity, 1e300], [2])],
  [
    'BYTES',
    { bytes_contents: [Buffer.from('é'), Buffer.alloc(0)] },
    new Tensor('string', ['é', ''], [2]),
  ],
])('Elements of %s are read from typed contents', (datatype, contents, tensor) => {
  const read = fromGrpcTensors(
    { tensors: [{ name: 'x', datatype, shape: ['2'], contents }], raw: [] },
    reading(),
  );

  expect(read.get('x')!.type).toBe(tensor.type);
  expect(read.get('x')!.data).toEqual(tensor.data);
});

it('BF16 is read as float32', () => {
  const halves = Uint16Array.of(0x3f80, 0xc000, 0x7f80);

  const { type, data } = tensorOfBytes('BF16', [3], new Uint8Array(halves.buffer), reading());

  expect(type).toBe('float32');
  expect(data).toEqual(Float32Array.of(1, -2, Infinity));
});

const text = (length: number, bytes: string): Buffer =>
  Buffer.concat([Buffer.from([length, 0, 0, 0]), Buffer.from(bytes, 'latin1')]);

it.each<[string, string, number[], Buffer, string]>([
  [
    'too few bytes',
    'FP32',
    [2],
    Buffer.alloc(7),
    '"inputs" in the request has 7 bytes, which are not those of FP32[2]',
  ],
  [
    'too many elements',
    'INT8',
    [2 ** 31, 2 ** 31],
    Buffer.alloc(4),
    'has 4 bytes, which are not those of INT8[2147483648, 2147483648]',
  ],
  [
    'an unknown datatype',
    'FP8',
    [1],
    Buffer.alloc(1),
    'has the datatype FP8, which the protocol does not have',
  ],
  ['a truth value of 2', 'BOOL', [2], Buffer.of(1, 2), 'has a byte that is neither 0 nor 1'],
  [
    'more strings than bytes',
    'BYTES',
    [2 ** 32 - 1],
    Buffer.alloc(8),
    'has 8 bytes, too few for BYTES[4294967295]',
  ],
  ['a cut string', 'BYTES', [1], text(5, 'abc'), 'ends inside element 0'],
  ['bytes after the strings', 'BYTES', [1], text(1, 'abc'), 'has 2 bytes after its last element'],
  [
    'a string that is not UTF-8',
    'BYTES',
    [1],
    text(1, '\xff'),
    '"inputs.0" in the request is not UTF-8',
  ],
  [
    'odd bytes of BF16',
    'BF16',
    [1],
    Buffer.alloc(3),
    'has 3 bytes, which are not those of BF16[1]',
  ],
])('Bytes are refused: %s', (_, datatype, shape, bytes, message) => {
  const read = (): Tensor => tensorOfBytes(datatype, shape, bytes, reading());

  expect(read).toThrow(InvalidInputError);
  expect(read).toThrow(message);
});

const input = { name: 'x', datatype: 'FP32', shape: ['1'] };

it.each([
  [
    'contents beside raw contents',
    [{ ...input, contents: { fp32_contents: [1] } }],
    [Buffer.alloc(4)],
    '"inputs.x" in the request has both raw contents and contents',
  ],
  [
    'another number of raw contents',
    [input, { ...input, name: 'y' }],
    [Buffer.alloc(4)],
    'has 2 tensors and raw contents of 1',
  ],
  [
    'a name twice',
    [input, input],
    [Buffer.alloc(4), Buffer.alloc(4)],
    '"inputs.x" in the request is there twice',
  ],
  ['a negative axis', [{ ...input, shape: ['-1'] }], [Buffer.alloc(4)], 'has an axis of -1'],
  [
    'nine axes',
    [{ ...input, shape: Array.from({ length: 9 }, () => '1') }],
    [Buffer.alloc(4)],
    'has 9 axes; at most 8',
  ],
  [
    'half floats without raw contents',
    [{ ...input, datatype: 'FP16' }],
    [],
    'whose elements are sent as raw contents',
  ],
  [
    'a number out of range',
    [{ ...input, datatype: 'INT8', contents: { int_contents: [128] } }],
    [],
    'INT8 holds whole numbers in its range',
  ],
  [
    'elements in the wrong list',
    [{ ...input, contents: { fp64_contents: [1] } }],
    [],
    'has 0 elements',
  ],
])('A gRPC message is refused: %s', (_, list, raw, message) => {
  const read = (): unknown => fromGrpcTensors({ tensors: list, raw }, reading());

  expect(read).toThrow(InvalidInputError);
  expect(read).toThrow(message);
});

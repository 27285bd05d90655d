import { expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { Batch, Tensor } from 'nestjs-serving';
import { sixOfEachType } from '../../fixtures/values/tensors.js';
import { datatypeOf } from '../../../lib/encoding/json-tensor.js';
import {
  type GrpcInferRequest,
  loadInferenceService,
} from '../../../lib/extensions/inference-protocol/wire/grpc-service.js';
import { requestBytes } from '../../../lib/extensions/inference-protocol/client/infer-messages.js';
import { bytesOfTensor } from '../../../lib/extensions/inference-protocol/wire/tensor-bytes.js';

const types = sixOfEachType.map(({ type }) => type);
const TEXTS = ['', 'a', 'é', '\ud800', '漢字', 'x'.repeat(130)];

/** An input of a model: its rows lie on `axis`, and may differ in length on another axis. */
const inputs = fc
  .record({
    type: fc.constantFrom(...types),
    inner: fc.array(fc.nat(3), { minLength: 1, maxLength: 3 }),
    axis: fc.nat(2),
    variable: fc.option(fc.nat(2)),
    isPadded: fc.boolean(),
    isShared: fc.boolean(),
  })
  .map(({ inner, axis, variable, ...input }) => ({
    ...input,
    inner,
    axis: axis % inner.length,
    variable:
      variable === null || variable % inner.length === axis % inner.length
        ? undefined
        : variable % inner.length,
  }));
type Input = typeof inputs extends fc.Arbitrary<infer T> ? T : never;

const scenarios = fc.record({
  inputs: fc.array(inputs, { minLength: 1, maxLength: 4 }),
  /** The rows and the variable length of each item. */
  items: fc.array(fc.tuple(fc.integer({ min: 1, max: 4 }), fc.nat(5)), {
    minLength: 1,
    maxLength: 5,
  }),
  padding: fc.nat(2),
  skipped: fc.nat(3),
  spare: fc.nat(9),
});

function tensorOf(input: Input, rows: number, length: number, seed: number): Tensor {
  const { type, inner, axis, variable, isShared } = input;
  const dims = isShared ? inner : inner.with(axis, rows);
  if (!isShared && variable !== undefined) {
    dims[variable] = length;
  }
  const count = dims.reduce((product, size) => product * size, 1);
  const { data } = sixOfEachType.find((tensor) => tensor.type === type)!;
  if (Array.isArray(data)) {
    const texts = Array.from({ length: count }, (_, i) => TEXTS[(seed + i) % TEXTS.length]!);
    return new Tensor('string', texts, dims);
  }
  const bytes = new Uint8Array(count * data.BYTES_PER_ELEMENT).map((_, i) =>
    type === 'bool' ? (seed + i) & 1 : (seed + 7 * i) & 0xff,
  );
  return new Tensor(
    type,
    new (data.constructor as Float32ArrayConstructor)(bytes.buffer, 0, count),
    dims,
  );
}

function variableOf({ type, variable, isPadded }: Input) {
  const isBig = type === 'int64' || type === 'uint64';
  const element = type === 'string' ? 'pad' : isBig ? 1n : 1;
  return { axis: variable!, ...(isPadded && { padWith: element }) };
}

/** A batch of items that were made one by one, without its first rows. */
function batchOf({ inputs: all, items, padding, skipped }: Scenario): Batch {
  const axes = Object.fromEntries(
    all.map(({ axis, isShared }, i) => [`input ${i}`, isShared ? null : axis]),
  );
  const variable = Object.fromEntries(
    all.flatMap((input, i) =>
      input.variable === undefined || input.isShared ? [] : [[`input ${i}`, variableOf(input)]],
    ),
  );
  const batches = items.map(([rows, length], item) =>
    Batch.ofContainer(
      Object.fromEntries(
        all.map((input, i) => [
          `input ${i}`,
          tensorOf(input, rows, length, input.isShared ? i : 31 * item + i),
        ]),
      ),
      axes,
    ).vary(variable),
  );
  const batch = Batch.merge(batches);
  return batch.slice(Math.min(skipped, batch.size - 1), batch.size).pad(padding);
}
type Scenario = typeof scenarios extends fc.Arbitrary<infer T> ? T : never;

it('A request of any inputs has the bytes that protobufjs writes for the gathered rows', async () => {
  const { service } = await loadInferenceService('The test');
  const { requestSerialize, requestDeserialize } = service['ModelInfer']!;
  fc.assert(
    fc.property(scenarios, (scenario) => {
      // Items without any batch axis run alone.
      fc.pre(scenario.inputs.some(({ isShared }) => !isShared));
      const batch = batchOf(scenario);
      const rows = batch.leafRows()!;
      const tensors = Object.values(batch.consume() as Record<string, Tensor>);
      const head = {
        model_name: 'm',
        model_version: '2',
        parameters: { timeout: { int64_param: 5 } },
        inputs: rows.map(({ path, type, dims }) => ({
          name: path,
          datatype: datatypeOf(type),
          shape: dims,
        })),
        outputs: [{ name: 'y' }],
      };
      const raw_input_contents = tensors.map(bytesOfTensor);

      const message = requestBytes(requestSerialize(head), rows, (length) =>
        // Memory of an earlier message, which lies at any offset.
        Buffer.alloc(scenario.spare + length, 0xaa).subarray(scenario.spare),
      );

      expect(message).toEqual(requestSerialize({ ...head, raw_input_contents }));
      const received = requestDeserialize(message) as GrpcInferRequest;
      expect(received.inputs.map(({ shape }) => shape.map(Number))).toEqual(
        tensors.map(({ dims }) => dims),
      );
      expect(received.raw_input_contents).toEqual(raw_input_contents);
    }),
    { numRuns: 300 },
  );
});

it('A length of more than 7 bits, 14 bits or 21 bits is written as protobufjs does', async () => {
  const { service } = await loadInferenceService('The test');
  const { requestSerialize } = service['ModelInfer']!;
  for (const size of [0, 1, 127, 128, 16_383, 16_384, 2 ** 21 - 1, 2 ** 21]) {
    const tensor = new Tensor('uint8', new Uint8Array(size).fill(7), [1, size]);
    const message = requestBytes(
      requestSerialize({ model_name: 'm' }),
      Batch.ofContainer(tensor).leafRows()!,
      (length) => Buffer.allocUnsafe(length),
    );
    const expected = requestSerialize({
      model_name: 'm',
      raw_input_contents: [bytesOfTensor(tensor)],
    });
    expect(message.equals(expected)).toBe(true);
  }
});

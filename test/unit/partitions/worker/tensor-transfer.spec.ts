import { describe, expect, it } from '@jest/globals';
import { Batch, Tensor } from 'nestjs-serving';
import { FlatContainer } from '../../../../lib/core/batch/container.js';
import { feedsOf, ModelReply } from '../../../../lib/core/partitions/model/model-io.js';
import type { ModelPort } from '../../../../lib/core/partitions/model/model-signature.js';
import {
  packTensors,
  SpareMemory,
  spareOf,
  unpackTensors,
} from '../../../../lib/core/partitions/worker/transfer.js';
import { floats, sixOfEachType } from '../../../fixtures/values/tensors.js';

const port = (name: string, type: Tensor.Type = 'float32'): ModelPort => ({
  name,
  type,
  shape: ['batch', 2],
  batchAxis: 0,
});

/** The tensors as they come out of another thread. */
function cross(tensors: readonly Tensor[], ports: readonly ModelPort[]): Tensor[] {
  const [wire, transfer] = packTensors(tensors);
  return unpackTensors(structuredClone(wire, { transfer }), ports);
}

describe('The tensors of a model on their way', () => {
  it.each(sixOfEachType)('[5.4] A tensor of type $type moves with its buffer', (tensor) => {
    const { type, dims, data } = tensor;
    const moving = new Tensor(type, data.slice(), dims);

    expect(cross([moving], [port('x', type)])).toEqual([tensor]);
    expect(moving.data).toHaveLength(type === 'string' ? 6 : 0);
  });

  it('[5.4] Tensors that share a buffer, or are part of one, all arrive', () => {
    const shared = Float32Array.of(1, 2, 3, 4);
    const whole = new Tensor('float32', shared, [2, 2]);
    const part = new Tensor('float32', shared.subarray(2), [1, 2]);

    const arrived = cross([part, whole, whole], [port('a'), port('b'), port('c')]);

    expect(arrived).toEqual([
      floats([1, 2], [3, 4]),
      floats([2, 2], [1, 2, 3, 4]),
      floats([2, 2], [1, 2, 3, 4]),
    ]);
  });
});

describe('SpareMemory', () => {
  const large = 16 * 1024;

  it('[5.4] It gives each buffer once, for a batch of exactly its length', () => {
    const memory = new SpareMemory();
    const [a, b] = [new ArrayBuffer(large), new ArrayBuffer(2 * large)];
    memory.keep([a, b]);

    expect(memory.memoryOf(large + 1)).toBeUndefined();
    expect(memory.memoryOf(2 * large)).toBe(b);
    expect(memory.memoryOf(2 * large)).toBeUndefined();
    expect(memory.memoryOf(large)).toBe(a);
  });

  it('[5.4] It keeps the memory of the last two batches', () => {
    const memory = new SpareMemory();
    const buffers = [1, 2, 3].map((n) => new ArrayBuffer(n * large));
    buffers.forEach((buffer) => memory.keep([buffer]));

    const given = buffers.map(({ byteLength }) => memory.memoryOf(byteLength));

    expect(given).toEqual([undefined, buffers[1], buffers[2]]);
  });

  it('[5.4] Only large buffers of numbers are spare', () => {
    const [small, whole] = [large - 1, large].map(
      (length) => new Tensor('uint8', new Uint8Array(length), [length]),
    );
    const text = new Tensor('string', ['a'], [1]);

    expect(spareOf([small!, text, whole!])).toEqual([whole!.data.buffer]);
  });
});

describe('feedsOf', () => {
  it('[5.4] The tensors of rows are in the order of the inputs, by path', () => {
    const [a, b] = [floats([1, 2], [1, 2]), floats([1, 2], [3, 4])];
    const rows = Batch.concatenate([{ a, z: { b } }]).gather();

    expect(feedsOf(rows, [port('z.b'), port('a')])).toEqual([b, a]);
    expect(feedsOf(Batch.concatenate([a]).gather(), [port('x')])).toEqual([a]);
  });

  it('[5.4] Rows without an input, and plain values, are refused with its name', () => {
    const rows = Batch.concatenate([{ a: floats([1, 2], [1, 2]) }]).gather();

    expect(() => feedsOf(rows, [port('a'), port('b')])).toThrow('The input "b" is missing');
    expect(() => feedsOf(['text'], [port('a')])).toThrow('was given plain values');
  });
});

describe('ModelReply', () => {
  it('[5.4] The reply has the fetched outputs by name, each once', () => {
    const reply = new ModelReply({
      outputs: [port('z'), port('a', 'int64'), port('b.c')],
      fetches: ['z', 'b.c', 'z'],
    });
    const [first, second] = [floats([1, 2], [1, 2]), floats([1, 2], [3, 4])];

    expect(reply.names).toEqual(['b.c', 'z']);
    expect(reply.ports).toEqual([port('b.c'), port('z')]);
    const rows = reply.of([first, second]);
    expect(rows).toBeInstanceOf(FlatContainer);
    expect(rows.toContainer()).toEqual({ 'b.c': first, z: second });
  });
});

import { describe, expect, it } from '@jest/globals';
import { BatchFailedError, InvalidOutputError, Tensor } from 'nestjs-serving';
import { FlatContainer, rowsIn } from '../../../../lib/core/batch/container.js';
import {
  packOutput,
  unpackOutput,
  type WireOutput,
} from '../../../../lib/core/partitions/worker/transfer.js';
import { floats, sixOfEachType } from '../../../fixtures/values/tensors.js';

/** The output that was packed, as a caller gets it. */
function received(wire: WireOutput): unknown {
  const output = unpackOutput(wire);
  return output instanceof FlatContainer ? output.toContainer() : output;
}

/** The value as it comes out of another thread. */
function cross(value: unknown, plainRows = true): unknown {
  const [wire, transfer] = packOutput(value, plainRows);
  return received(structuredClone(wire, { transfer }));
}

describe('pack and unpack', () => {
  it.each(sixOfEachType)('[5.4] A tensor and its buffer are moved: $type', (tensor) => {
    const { type, dims, data } = tensor;
    const moving = new Tensor(type, data.slice(), dims);

    const moved = cross(moving, false);

    expect(moved).toEqual(tensor);
    expect(moved).toBeInstanceOf(Tensor);
    expect(moving.data).toHaveLength(type === 'string' ? 6 : 0);
  });

  it.each<[string, unknown, boolean]>([
    ['a named map of tensors', { x: floats([1], [1]), y: floats([1], [2]) }, false],
    ['a tuple of tensors', [floats([1], [1]), floats([1], [2])], false],
    ['a list with a tensor for each row', [floats([1], [1]), floats([2], [2, 3])], true],
    [
      'a list of values of every kind',
      [
        'text',
        7n,
        null,
        undefined,
        { x: floats([1], [1]) },
        [floats([1], [2])],
        { at: new Date(0) },
      ],
      true,
    ],
    [
      'rows that hold tensors beside other things',
      [{ x: floats([1], [1]), of: { y: floats([1], [2]) }, name: 'a' }, { name: 'b' }],
      true,
    ],
    ['an empty list', [], true],
    ['neither a list nor a tensor', { rows: 1 }, true],
    ['nothing', undefined, true],
  ])('[1.7] Rows of any kind are transferred: %s', (_, value, plainRows) => {
    const [wire] = packOutput(value, plainRows);

    expect(received(structuredClone(wire))).toEqual(value);
  });

  it('[1.7] Tensors beside other values are transferred as tensors', () => {
    const row = { image: floats([2], [1, 2]), label: 'a' };

    const [moved] = received(structuredClone(packOutput([row], true)[0])) as [typeof row];

    expect(moved.image).toBeInstanceOf(Tensor);
    expect(moved).toEqual(row);
  });

  it('[1.7] A tensor named __proto__ changes no prototype', () => {
    const row = JSON.parse(
      '{"n": 1, "__proto__": {"type": "string", "dims": [1], "data": ["a"], "size": 1}}',
    ) as object;

    const [moved] = cross([row]) as [object];

    expect(Object.getPrototypeOf(Object.getPrototypeOf(moved))).toBeNull();
    expect(Object.getOwnPropertyDescriptor(moved, '__proto__')?.value).toEqual(
      new Tensor('string', ['a'], [1]),
    );
    expect(Object.keys(moved)).toEqual(['n', '__proto__']);
  });

  it('[6.5] Errors among the rows keep class, code and cause', () => {
    const own = Object.assign(new RangeError('too far', { cause: new Error('9 > 8') }), {
      code: 'TOO_FAR',
    });

    const [first, second, third] = cross(['fine', new BatchFailedError('broken'), own]) as [
      string,
      Error,
      Error,
    ];

    expect(first).toBe('fine');
    expect(second).toBeInstanceOf(BatchFailedError);
    expect(third).toMatchObject({
      name: 'RangeError',
      message: 'too far',
      code: 'TOO_FAR',
      cause: { message: '9 > 8' },
    });
  });

  it.each<[string, (elements: Uint8Array) => Uint8Array]>([
    ['a view of some elements', (elements) => elements.subarray(1, 3)],
    ['a Buffer in the pool', () => Buffer.from([2, 3])],
    ['shared memory', () => new Uint8Array(new SharedArrayBuffer(2)).fill(2)],
  ])('[5.4] Only the visible elements are copied of %s', (_, viewOf) => {
    const elements = Uint8Array.of(1, 2, 3, 4);
    const view = viewOf(elements);
    const before = [...view];

    const { data } = cross(new Tensor('uint8', view, [2])) as { data: Uint8Array };

    expect([...data]).toEqual(before);
    expect(data.buffer.byteLength).toBe(2);
    expect([[...view], [...elements]]).toEqual([before, [1, 2, 3, 4]]);
  });

  it('[5.4] Two tensors that share a buffer each get their own', () => {
    const shared = floats([2], [1, 2]);

    const [left, right] = cross([shared, shared]) as [Tensor, Tensor];

    expect([left, right]).toEqual([floats([2], [1, 2]), floats([2], [1, 2])]);
    expect((left.data as Float32Array).buffer).not.toBe((right.data as Float32Array).buffer);
  });

  it('[5.4] A tensor whose buffer has moved before is refused', () => {
    const tensor = floats([2], [1, 2]);
    cross({ scores: tensor });

    expect(() => cross({ scores: tensor })).toThrow(InvalidOutputError);
    expect(() => cross({ scores: tensor })).toThrow(
      '"scores" holds 0 elements and its shape [2] needs 2',
    );
  });
});

describe('rowsIn', () => {
  it.each<[string, unknown, boolean, boolean]>([
    ['a list', ['a'], false, true],
    ['a tuple of tensors for rows that are tensors', [floats([1], [1])], false, false],
    ['a tensor per row for plain rows', [floats([1], [1])], true, true],
    ['a map', { x: 1 }, true, false],
  ])(
    '[1.7] A list of rows is distinguished from a container: %s',
    (_, value, plainRows, expected) => {
      expect(Array.isArray(rowsIn(value, plainRows))).toBe(expected);
    },
  );
});

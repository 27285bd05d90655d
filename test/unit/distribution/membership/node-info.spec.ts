import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import type { TensorSignature } from 'nestjs-serving';
import {
  type NodeInfo,
  readNodeInfo,
} from '../../../../lib/extensions/distribution/membership/node-info.js';
import { FrameError } from '../../../../lib/extensions/distribution/wire/prelude.js';
import type { ServingStatus } from '../../../../lib/doors/servings.js';
import { nodeInfo, servingStatus } from '../../../fixtures/cluster/nodes.js';

const long = 'x'.repeat(257);
const numbers: unknown[] = [-1, NaN, Infinity, '1', null, undefined, 2 ** 60];
const wholes: unknown[] = [...numbers, 0.5];
const flags: unknown[] = ['true', 1, null, undefined];

const tensorSignature: TensorSignature = {
  name: 'x',
  type: 'float32',
  shape: [null, 'length'],
  batchAxis: 0,
};

const oddInNode: Record<keyof NodeInfo, unknown[]> = {
  id: ['', long, 1, null, undefined, ['a']],
  epoch: wholes,
  address: ['', long, 'a.b', 'a b', 'a*', 'a>', 'ä', 'a\n', 1, undefined],
  outages: wholes,
  seq: wholes,
  role: ['server', '', 1, undefined, 'constructor'],
  state: ['down', 'UP', 0, undefined],
  servings: [
    undefined,
    null,
    {},
    'm',
    [null],
    [[]],
    ['m'],
    Array.from({ length: 1025 }, (_, i) => servingStatus({ name: `${i}` })),
  ],
};

const oddInServing: Record<keyof ServingStatus, unknown[]> = {
  name: ['', long, 1, undefined],
  weight: [...numbers, 1e6 + 1],
  partitions: [...wholes, 2 ** 16 + 1],
  activeCalls: wholes,
  queued: wholes,
  batchTime: numbers,
  idempotent: flags,
  isReady: flags,
  signature: [
    null,
    [],
    {},
    { inputs: [{}] },
    { inputs: {} },
    { inputs: [], outputs: null },
    ...[
      { name: long },
      { name: 1 },
      { type: 'float' },
      { type: 'constructor' },
      { shape: [-1] },
      { shape: [0.5] },
      { shape: [long] },
      { shape: [{}] },
      { shape: Array.from({ length: 65 }, () => 1) },
      { batchAxis: 2 },
      { batchAxis: -1 },
      { batchAxis: undefined },
    ].map((odd) => ({ inputs: [{ ...tensorSignature, ...odd }] })),
    { inputs: Array.from({ length: 257 }, () => tensorSignature) },
  ],
};

/** The invalid values with which a heartbeat is still accepted. */
function readAll(values: readonly unknown[], beatWith: (value: unknown) => unknown): unknown[] {
  return values.filter((value) => {
    try {
      return readNodeInfo(beatWith(value));
    } catch (error) {
      expect(error).toBeInstanceOf(FrameError);
      return false;
    }
  });
}

describe('readNodeInfo', () => {
  it('[11] A heartbeat is read, also at its limits, and unknown fields are dropped', () => {
    const servings = Array.from({ length: 1023 }, (_, i) =>
      servingStatus({ name: `serving ${i}` }),
    );
    const limits = {
      weight: 1e6,
      partitions: 2 ** 16,
      queued: Number.MAX_SAFE_INTEGER,
      batchTime: 0.125,
      idempotent: false,
      signature: {
        inputs: [tensorSignature, { ...tensorSignature, name: '', shape: [], batchAxis: null }],
        outputs: [{ ...tensorSignature, type: 'string' as const, shape: [3, 0], batchAxis: 1 }],
      },
    };
    const info = nodeInfo({
      id: 'x'.repeat(256),
      address: `${'Az09_-'.repeat(42)}abcd`,
      epoch: Number.MAX_SAFE_INTEGER,
      state: 'draining',
      servings: [...servings, servingStatus({ name: 'ä.*>', ...limits, isReady: false })],
    });

    const header: unknown = JSON.parse(
      JSON.stringify({ ...info, servings: info.servings.map((one) => ({ ...one, colour: 1 })) }),
    );
    expect(readNodeInfo({ ...(header as object), kind: 32 })).toEqual(info);
    expect(readNodeInfo(nodeInfo({ role: 'client' }))).toEqual(nodeInfo({ role: 'client' }));
  });

  it.each(Object.entries(oddInNode))(
    '[11] A heartbeat with an invalid field "%s" is refused',
    (name, values) => {
      expect(readAll(values, (value) => ({ ...nodeInfo(), [name]: value }))).toEqual([]);
    },
  );

  it.each(Object.entries(oddInServing))(
    '[11] A heartbeat of a serving with an invalid field "%s" is refused',
    (name, values) => {
      expect(
        readAll(values, (value) => nodeInfo({ servings: [{ ...servingStatus(), [name]: value }] })),
      ).toEqual([]);
    },
  );

  it('[11] A heartbeat with a name twice, or of a client that serves, is refused', () => {
    const servings = [servingStatus(), servingStatus()];

    expect(() => readNodeInfo(nodeInfo({ servings }))).toThrow('A heartbeat names a serving twice');
    expect(() => readNodeInfo(nodeInfo({ role: 'client', servings: [servingStatus()] }))).toThrow(
      FrameError,
    );
  });

  it('[11] The refusal of a heartbeat is short and names the invalid field', () => {
    expect(() => readNodeInfo(nodeInfo({ seq: -1 }))).toThrow(
      'Field "seq" is -1; allowed is a whole number of 0 or more',
    );
    expect(() => readNodeInfo(nodeInfo({ id: 'x'.repeat(1e6), address: 'a' }))).toThrow(
      /^Field "id" is "x{200}\.\.\. \(1000000 characters\)"; allowed is/,
    );
    expect(() => readNodeInfo([])).toThrow('A heartbeat is [], not an object');
  });

  it('[11] Any heartbeat is read or refused with a FrameError', () => {
    const odd = fc.oneof(
      fc.jsonValue(),
      fc.double(),
      fc.constantFrom(...Object.values(oddInNode).flat()),
    );
    const partly = (whole: object): fc.Arbitrary<unknown> =>
      fc
        .dictionary(fc.constantFrom(...Object.keys(whole)), odd, { maxKeys: 2 })
        .map((changes) => ({ ...whole, ...changes }));
    const servings = fc.array(fc.oneof(partly(servingStatus()), odd), { maxLength: 3 });
    const header = fc.oneof(
      odd,
      partly(nodeInfo()),
      servings.map((list) => ({ ...nodeInfo(), servings: list })),
    );
    fc.assert(
      fc.property(header, (value) => {
        try {
          const info = readNodeInfo(value);
          expect(readNodeInfo(info)).toEqual(info);
          const shares = info.servings.map(({ weight, partitions }) => weight * partitions);
          expect(shares.every((share) => share >= 0 && share < 1e12)).toBe(true);
        } catch (error) {
          expect(error).toBeInstanceOf(FrameError);
        }
      }),
    );
  });
});

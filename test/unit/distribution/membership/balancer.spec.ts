import { describe, expect, it, jest } from '@jest/globals';
import * as fc from 'fast-check';
import {
  type Balance,
  balancerOf,
  leastLoaded,
  pickWeighted,
  type Candidate,
  Candidates,
} from '../../../../lib/extensions/distribution/membership/balancer.js';
import { Members } from '../../../../lib/extensions/distribution/membership/members.js';
import type { ServingStatus } from '../../../../lib/doors/servings.js';
import { randomFrom } from '../../../chaos/random.js';
import { nodeInfo, servingStatus } from '../../../fixtures/cluster/nodes.js';

const nobody = new Set<string>();
const never = (): number => 0;

/** The candidates of serving `m` among nodes a, b, c, ..., as the table of members makes them. */
function candidatesOf(...status: Partial<ServingStatus>[]): Candidates {
  const members = new Members({ suspectAfter: 2000, downAfter: 3000, maxNodes: 1024 });
  status.forEach((one, index) => {
    members.receive(
      nodeInfo({ id: String.fromCharCode(97 + index), servings: [servingStatus(one)] }),
      0,
    );
  });
  return members.candidates('m');
}

/** The number of picks of each node. */
function countsOf(pick: () => Candidate | undefined, draws: number): Record<string, number> {
  const counts: Record<string, number> = {};
  for (let i = 0; i < draws; i++) {
    const id = pick()?.id ?? 'nobody';
    counts[id] = (counts[id] ?? 0) + 1;
  }
  return counts;
}

function weighted(
  candidates: Candidates,
  excluded = nobody,
  draws = 100_000,
): Record<string, number> {
  const random = randomFrom(1);
  return countsOf(() => pickWeighted(candidates, excluded, random), draws);
}

function least(
  candidates: Candidates,
  activeCalls: Record<string, number>,
  excluded = nobody,
  draws = 1000,
): Record<string, number> {
  const random = randomFrom(1);
  return countsOf(
    () => leastLoaded(candidates, excluded, random, (address) => activeCalls[address] ?? 0),
    draws,
  );
}

function chiSquared(counts: Record<string, number>, chances: Record<string, number>): number {
  const draws = Object.values(counts).reduce((sum, count) => sum + count, 0);
  const unexpected = Object.keys(counts).filter((id) => !(id in chances));
  expect(unexpected).toEqual([]);
  return Object.entries(chances).reduce(
    (sum, [id, chance]) => sum + ((counts[id] ?? 0) - draws * chance) ** 2 / (draws * chance),
    0,
  );
}

/** The value that chi-squared exceeds once in ten thousand times, by its degrees of freedom. */
const RARE = [0, 15.14, 18.42, 21.11, 23.51];

describe('pickWeighted', () => {
  it.each([
    ['weights of 1:2:2', [{ weight: 1 }, { weight: 2 }, { weight: 2 }], { a: 0.2, b: 0.4, c: 0.4 }],
    [
      'partitions × weight',
      [{}, { weight: 2, partitions: 3 }, { partitions: 2 }],
      { a: 1 / 9, b: 6 / 9, c: 2 / 9 },
    ],
    [
      'weights of 0, which are never drawn',
      [{ weight: 0 }, {}, { partitions: 0 }, { weight: 3 }],
      { b: 0.25, d: 0.75 },
    ],
    [
      'fractions of weights',
      [{ weight: 0.25 }, { weight: 0.125, partitions: 2 }, { weight: 1.5 }],
      { a: 1 / 8, b: 1 / 8, c: 6 / 8 },
    ],
    ['readiness', [{}, { isReady: false }, {}], { a: 0.5, c: 0.5 }],
  ] as [string, Partial<ServingStatus>[], Record<string, number>][])(
    '[11] draws by %s',
    (_, status, chances) => {
      const counts = weighted(candidatesOf(...status));

      expect(chiSquared(counts, chances)).toBeLessThan(RARE[Object.keys(chances).length - 1]!);
    },
  );

  it("[11] Excluding nodes keeps the ratio of the others' chances", () => {
    const candidates = candidatesOf(
      { weight: 1 },
      { weight: 2 },
      { weight: 96 },
      { weight: 0.5 },
      { weight: 0.5 },
    );

    const counts = weighted(candidates, new Set(['c-1', 'd-1', 'stranger']));

    expect(chiSquared(counts, { a: 1 / 3.5, b: 2 / 3.5, e: 0.5 / 3.5 })).toBeLessThan(RARE[2]!);
  });

  it('[11] The statistical bound of these tests detects a small deviation', () => {
    const counts = weighted(candidatesOf({ weight: 1.05 }, { weight: 2 }, { weight: 2 }));

    expect(chiSquared(counts, { a: 0.2, b: 0.4, c: 0.4 })).toBeGreaterThan(RARE[2]!);
  });

  it('[11] No node is picked when there is none, or when all are excluded or have weight 0', () => {
    expect(pickWeighted(candidatesOf(), nobody, never)).toBeUndefined();
    expect(pickWeighted(candidatesOf({ weight: 0 }, { weight: 0 }), nobody, never)).toBeUndefined();
    expect(pickWeighted(candidatesOf({}, {}), new Set(['a-1', 'b-1']), never)).toBeUndefined();
  });

  it('[11] A node that is not excluded is picked whenever there is one, with any weights and random numbers', () => {
    const weight = fc.oneof(
      fc.double({ min: 0, max: 1e6, noNaN: true }),
      fc.constantFrom(0, Number.MIN_VALUE, 1e-300, 1e6),
    );
    const number = fc.oneof(
      fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }),
      fc.constantFrom(0, 1 - 2 ** -53),
    );
    fc.assert(
      fc.property(
        fc.array(weight, { maxLength: 8 }),
        fc.subarray([0, 1, 2, 3, 4, 5, 6, 7]),
        number,
        (weights, indexes, drawn) => {
          const candidates = candidatesOf(...weights.map((one) => ({ weight: one })));
          const excluded = new Set(indexes.map((index) => `${String.fromCharCode(97 + index)}-1`));
          const left = candidates.list.filter(({ address }) => !excluded.has(address));

          const picked = pickWeighted(candidates, excluded, () => drawn);

          expect(picked === undefined).toBe(left.length === 0);
          expect(picked === undefined || left.includes(picked)).toBe(true);
        },
      ),
    );
  });

  it('[11] No list is built when no node is excluded', () => {
    const without = jest.spyOn(Candidates.prototype, 'without');

    weighted(candidatesOf({}, {}, {}), nobody, 1000);

    expect(without).not.toHaveBeenCalled();
    without.mockRestore();
  });

  it('[11] The node is picked in whose share the random number lies', () => {
    const candidates = candidatesOf({ weight: 1 }, { weight: 2 }, { weight: 5 });
    const at = (number: number): string | undefined =>
      pickWeighted(candidates, nobody, () => number)?.id;

    expect([0, 0.124, 0.125, 0.374, 0.375, 0.999].map(at)).toEqual(['a', 'a', 'b', 'b', 'c', 'c']);
  });
});

describe('leastLoaded', () => {
  it('[11] Of two nodes the one with fewer calls in progress is picked', () => {
    expect(least(candidatesOf({}, {}), { 'a-1': 1 })).toEqual({ b: 1000 });
    expect(least(candidatesOf({}, {}), { 'b-1': 1 })).toEqual({ a: 1000 });
  });

  it('[11] Of two nodes the one whose calls will take less time is picked, by its partitions', () => {
    expect(least(candidatesOf({ batchTime: 10 }, { batchTime: 40 }), { 'a-1': 2 })).toEqual({
      a: 1000,
    });
    expect(least(candidatesOf({ batchTime: 10 }, { batchTime: 20 }), { 'a-1': 2 })).toEqual({
      b: 1000,
    });
    expect(
      least(candidatesOf({ batchTime: 10 }, { batchTime: 40, partitions: 2 }), { 'a-1': 2 }),
    ).toEqual({
      b: 1000,
    });
  });

  it('[11] A small difference in load counts as noise', () => {
    expect(
      Object.keys(least(candidatesOf({ batchTime: 10 }, { batchTime: 12.4 }), {})).toSorted(),
    ).toEqual(['a', 'b']);
    expect(Object.keys(least(candidatesOf({ batchTime: 10 }, { batchTime: 12.6 }), {}))).toEqual([
      'a',
    ]);
  });

  it('[11] Only the number of calls counts while one node has not answered any', () => {
    expect(least(candidatesOf({ batchTime: 10 }, { batchTime: 0 }), { 'b-1': 1 })).toEqual({
      a: 1000,
    });
    expect(least(candidatesOf({ batchTime: 10 }, { batchTime: 0 }), { 'a-1': 1 })).toEqual({
      b: 1000,
    });
  });

  it('[11] Two different nodes are drawn by weight, so that the worst of three is never picked', () => {
    const candidates = candidatesOf({ weight: 1 }, { weight: 2 }, { weight: 5 });

    const counts = least(candidates, { 'a-1': 1, 'b-1': 2, 'c-1': 3 }, nobody, 100_000);

    // a is one of the two unless b and c are: first b, then c, or the other way.
    const both = (2 / 8) * (5 / 6) + (5 / 8) * (2 / 3);
    expect(chiSquared(counts, { a: 1 - both, b: both })).toBeLessThan(RARE[1]!);
  });

  it('[11] Nodes with equal load are drawn by weight', () => {
    const counts = least(candidatesOf({ weight: 1 }, { weight: 3 }), {}, nobody, 100_000);

    expect(chiSquared(counts, { a: 0.25, b: 0.75 })).toBeLessThan(RARE[1]!);
  });

  it('[11] Excluded nodes and nodes of weight 0 are never picked, and a single remaining node always', () => {
    const candidates = candidatesOf({}, { weight: 0 }, {});

    expect(least(candidates, { 'c-1': 9 }, new Set(['a-1']))).toEqual({ c: 1000 });
    expect(least(candidates, {}, new Set(['a-1', 'c-1']))).toEqual({ nobody: 1000 });
  });

  it('[11] The load of the last heartbeat counts without a change of the candidates', () => {
    const members = new Members({ suspectAfter: 2000, downAfter: 3000, maxNodes: 8 });
    const beat = (id: string, seq: number, batchTime: number): void =>
      members.receive(nodeInfo({ id, seq, servings: [servingStatus({ batchTime })] }), 0);
    beat('a', 1, 10);
    beat('b', 1, 20);
    const candidates = members.candidates('m');
    expect(least(candidates, {})).toEqual({ a: 1000 });

    beat('a', 2, 30);

    expect(members.candidates('m')).toBe(candidates);
    expect(least(candidates, {})).toEqual({ b: 1000 });
  });
});

describe('balancerOf', () => {
  const context = { serving: 'm', activeCalls: (address: string) => (address === 'a-1' ? 1 : 0) };
  const picksOf = (balance: Balance): Record<string, number> => {
    const pick = balancerOf(balance, randomFrom(1));
    const candidates = candidatesOf({ weight: 3 }, { weight: 1 });
    return countsOf(() => pick(candidates, nobody, context), 10_000);
  };

  it('[11] The balancer picks by weight or by load, as configured', () => {
    expect(chiSquared(picksOf('weighted'), { a: 0.75, b: 0.25 })).toBeLessThan(RARE[1]!);
    expect(picksOf('least-loaded')).toEqual({ b: 10_000 });
  });

  it('[11] A custom function receives the candidates that are not excluded', () => {
    const choose = jest.fn((candidates: readonly Candidate[]) => candidates.at(-1));
    const pick = balancerOf(choose);
    const candidates = candidatesOf({}, { weight: 0 }, { batchTime: 7, partitions: 2 }, {});

    expect(pick(candidates, nobody, context)).toMatchObject({ id: 'd', address: 'd-1', share: 1 });
    expect(pick(candidates, new Set(['d-1']), context)).toMatchObject({
      id: 'c',
      share: 2,
      status: { batchTime: 7 },
    });
    expect(choose.mock.calls).toEqual([
      [[candidates.list[0], candidates.list[1], candidates.list[2]], context],
      [[candidates.list[0], candidates.list[1]], context],
    ]);
  });

  it('[11] No node is picked when a custom function returns none, and it is not called without candidates', () => {
    const choose = jest.fn(() => undefined);

    expect(balancerOf(choose)(candidatesOf({}), nobody, context)).toBeUndefined();
    expect(balancerOf(choose)(candidatesOf(), nobody, context)).toBeUndefined();
    expect(choose).toHaveBeenCalledTimes(1);
  });

  it('[11] A custom function that returns no candidate is refused', () => {
    const other = candidatesOf({}).list[0]!;

    expect(() => balancerOf(() => other)(candidatesOf({}, {}), nobody, context)).toThrow(
      /^Serving "m": the function in option "balance" returned .*; allowed is one of its candidates$/,
    );
    expect(() =>
      balancerOf(([first]) => first && { ...first })(candidatesOf({}), nobody, context),
    ).toThrow('allowed is one of');
  });
});

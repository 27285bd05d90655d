import { expect, it } from '@jest/globals';
import {
  leastLoaded,
  pickWeighted,
} from '../../../../lib/extensions/distribution/membership/balancer.js';
import { simulate, type Simulation } from '../../../fixtures/cluster/simulated-cluster.js';

const nobody = new Set<string>();
const weighted: Simulation['pick'] = (candidates, random) =>
  pickWeighted(candidates, nobody, random);
const least: Simulation['pick'] = (candidates, random, activeCalls) =>
  leastLoaded(candidates, nobody, random, activeCalls);

/** The second node has twice the weight that its one partition deserves. */
const misweighted = [
  { weight: 1, partitions: 1 },
  { weight: 2, partitions: 1 },
  { weight: 1, partitions: 2 },
];

const closeTo = (shares: readonly number[]): unknown[] =>
  shares.map((share) => expect.closeTo(share, 1.3));

it.each([
  ['one process', 1],
  ['eight processes', 8],
])(
  '[11] Balancing by load answers more calls of %s in less time than wrong weights do',
  (_, processes) => {
    const cluster = { nodes: misweighted, processes, load: { callers: 32 } };
    const byWeight = simulate({ ...cluster, pick: weighted });
    const byLoad = simulate({ ...cluster, pick: least });

    expect(byWeight.shares).toEqual(closeTo([0.2, 0.4, 0.4]));
    expect(byLoad.shares).toEqual(closeTo([0.25, 0.25, 0.5]));
    expect(byLoad.done).toBeGreaterThan(1.4 * byWeight.done);
    expect(byLoad.p99).toBeLessThan(0.5 * byWeight.p99);
  },
);

it('[11] Many processes that count only their own calls do not all pick the same nodes at once', () => {
  const nodes = Array.from({ length: 10 }, () => ({ weight: 1, partitions: 1 }));
  const callsPerSecond = 0.8 * (10 / 0.009);
  const cluster = { nodes, processes: 20, load: { callsPerSecond } };

  expect(simulate({ ...cluster, pick: least }).p99).toBeLessThan(
    0.8 * simulate({ ...cluster, pick: weighted }).p99,
  );
});

import { afterEach, describe, expect, it } from '@jest/globals';
import type { ClusterNode } from 'nestjs-serving/distribution';
import { VirtualTime } from 'nestjs-serving/testing';
import { useCluster } from '../../fixtures/cluster/use-cluster.js';

const echo = (name: string, weight: number) => ({
  name,
  distribution: { weight },
  partitions: 2,
  shutdown: { timeout: 100 },
  model: { useFactory: () => (rows: readonly unknown[]) => rows },
});

describe('ServingCluster.nodes()', () => {
  const cluster = useCluster();
  let time: VirtualTime | undefined;

  afterEach(() => time?.restore());

  it('[M3] nodes() lists this node and the others with their servings, weights and partitions', async () => {
    const a = await cluster.node({ nodeId: 'a', servings: [echo('m', 3), echo('n', 0.5)] });
    const web = await cluster.node({ nodeId: 'web' });
    await web.untilNodes('n');

    const nodes: readonly ClusterNode[] = web.cluster.nodes();

    expect(nodes.toSorted((one, other) => one.id.localeCompare(other.id))).toEqual([
      {
        id: 'a',
        address: a.address,
        role: 'node',
        state: 'up',
        isSelf: false,
        servings: [
          expect.objectContaining({ name: 'm', weight: 3, partitions: 2, isReady: true }),
          expect.objectContaining({ name: 'n', weight: 0.5, partitions: 2, isReady: true }),
        ],
      },
      { id: 'web', address: web.address, role: 'client', state: 'up', isSelf: true, servings: [] },
    ]);
  });

  it('[M3] nodes() lists a node as silent until it counts as gone', async () => {
    time = await VirtualTime.install();
    const a = await cluster.node({ nodeId: 'a', servings: [echo('m', 1)] });
    const web = await cluster.node({ nodeId: 'web' });
    await time.advance(100);
    const states = () =>
      web.cluster.nodes().flatMap(({ id, state }) => (id === 'a' ? [state] : []));
    expect(states()).toEqual(['up']);

    a.hang();
    await time.advance(2300);
    expect(states()).toEqual(['silent']);
    await time.advance(2000);
    expect(states()).toEqual([]);
    time.restore();
  });
});

import { beforeEach, expect, it } from '@jest/globals';
import { until } from '../../fixtures/async/awaited.js';
import { type BreakableLink, useBreakableLinks } from '../../fixtures/cluster/breakable-link.js';
import { useClusterProcesses } from '../../fixtures/cluster/use-cluster-processes.js';
import { describeEach, grpc, tcp } from '../../fixtures/cluster/wirings.js';

const distribution = { heartbeat: 100, downAfter: 1000 };

describeEach('The connection to a silent node', [tcp(), grpc()], (wiring) => {
  let way: BreakableLink | undefined;
  const breakable = useBreakableLinks();
  const { node, client } = useClusterProcesses({
    ...wiring,
    options: () => wiring.options(way ? [way.port] : []),
  });

  beforeEach(() => {
    way = undefined;
  });

  it('[11] The connection to a silent node is opened again', async () => {
    const silent = await node({ servings: [{ name: 'm' }], distribution });
    way = await breakable(silent.places.port!);
    const web = await client(distribution);
    await web.untilNodes('m', 1);
    expect(way.made).toBe(1);

    silent.process.kill('SIGSTOP');
    await web.untilNodes('m', 0);
    await until(() => way!.made > 1);
    silent.process.kill('SIGCONT');
    await web.untilNodes('m', 1);

    expect(await web.servings.batchedRun('m', { id: 'a', numbers: [1, 2] })).toMatchObject({
      id: 'a',
      sum: 3,
    });
  });
});

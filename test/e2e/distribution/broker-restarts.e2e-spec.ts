import { setTimeout } from 'node:timers/promises';
import { expect, it } from '@jest/globals';
import { DeadlineExceededError, NodeLostError } from 'nestjs-serving';
import { until } from '../../fixtures/async/awaited.js';
import { Callers } from '../../fixtures/http/callers.js';
import { failureOf } from '../../fixtures/async/failure-of.js';
import { useClusterProcesses } from '../../fixtures/cluster/use-cluster-processes.js';
import { describeBrokers } from '../../fixtures/cluster/wirings.js';

const distribution = { heartbeat: 100, downAfter: 2000 };
const row = (id: string) => ({ id, numbers: [1] });

describeBrokers('Processes of a cluster whose broker restarts', (wiring) => {
  const { node, client } = useClusterProcesses(wiring);

  /** Three nodes with running calls whose answers are lost, since the broker was killed. */
  async function withoutBroker(idempotent: boolean) {
    const servings = [{ name: 'm', batchSize: 4, recovery: { idempotent } }];
    const nodes = await Promise.all([1, 2, 3].map(() => node({ servings, distribution })));
    // Chosen at random: by load, a node that was slow for a moment might get no call.
    const web = await client({ ...distribution, balance: 'weighted' });
    await web.untilNodes('m', 3);
    const callers = new Callers(web.servings, 'm', 48);
    await callers.answered(300);
    await Promise.all(nodes.map((each) => each.hold()));
    // The first callers may all wait for nodes that held earlier than the last one.
    callers.join(48);
    await Promise.all(nodes.map((each) => each.untilHeld()));

    await wiring.broker().kill();
    await until(() => !web.cluster.selector.isOnline);
    const stranded = nodes.flatMap((each) => each.stranded);
    expect(stranded.length).toBeGreaterThan(0);
    nodes.forEach(({ process }) => process.send('open'));
    return { nodes, web, callers, stranded };
  }

  it('[11] When the broker restarts under load, calls wait for it, no node is lost and no call fails', async () => {
    const { nodes, web, callers, stranded } = await withoutBroker(true);

    const late = await failureOf(web.servings.batchedRun('m', row('late'), { timeout: 100 }));
    const patient = web.servings.batchedRun('m', row('patient'));
    await setTimeout(1.25 * distribution.downAfter);
    const known = web.cluster.selector.candidates('m').length;
    const answeredBefore = stranded.filter((id) => callers.answers.has(id));
    await wiring.broker().start();
    await Promise.all(nodes.map(({ pid }) => callers.answered(50, pid)));
    await callers.end();

    expect(late).toBeInstanceOf(DeadlineExceededError);
    expect(known).toBe(3);
    expect(answeredBefore).toEqual([]);
    expect(await patient).toMatchObject({ id: 'patient', sum: 1 });
    callers.expectUnharmed();
    expect(nodes.flatMap((each) => each.stranded)).toEqual([]);
  });

  it('[FV1] While the broker is gone, remotes are not ready and other nodes are silent; when it is back, they are ready and up', async () => {
    await node({ servings: [{ name: 'm', batchSize: 4 }], distribution });
    const web = await client(distribution);
    await web.untilNodes('m', 1);
    const seen = () => ({
      remote: web.servings.get('m').state,
      reason: web.servings.get('m').reason,
      nodes: web.cluster.nodes().map(({ isSelf, state }) => [isSelf, state] as const),
    });
    await wiring.broker().kill();
    await until(() => !web.cluster.selector.isOnline);
    const without = seen();
    await wiring.broker().start();
    await until(() => seen().remote === 'ready');

    expect(without.remote).toBe('starting');
    expect(without.reason).toContain('broker');
    expect(new Map(without.nodes)).toEqual(
      new Map([
        [true, 'up'],
        [false, 'silent'],
      ]),
    );
    expect(new Map(seen().nodes)).toEqual(
      new Map([
        [true, 'up'],
        [false, 'up'],
      ]),
    );
  });

  it('[11] When the broker restarts under load, calls that must not run twice fail with the reason and later ones succeed', async () => {
    const { web, callers, stranded } = await withoutBroker(false);
    await until(() => stranded.every((id) => callers.failures.has(id)));
    const lost = new Map(callers.failures);

    await wiring.broker().start();
    await callers.answered(300);
    await web.untilNodes('m', 3);
    await callers.end();

    expect([...lost.values()].filter((failure) => !(failure instanceof NodeLostError))).toEqual([]);
    expect(callers.wrong).toEqual([]);
    expect([...callers.failures.keys()].filter((id) => !lost.has(id))).toEqual([]);
  });
});

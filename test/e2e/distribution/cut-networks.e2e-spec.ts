import { Transport } from '@nestjs/microservices';
import { expect, it } from '@jest/globals';
import { Callers } from '../../fixtures/http/callers.js';
import { describeHosts } from '../../fixtures/cluster/hosts.js';
import {
  type ClusterProcess,
  useClusterProcesses,
} from '../../fixtures/cluster/use-cluster-processes.js';
import { tcp } from '../../fixtures/cluster/wirings.js';

const PORT = 5000;
const distribution = { heartbeat: 100, downAfter: 1000, secret: 'known to these hosts alone' };
const servings = [{ name: 'm', batchSize: 4, recovery: { idempotent: true } }];

const answersOf = ({ answers }: Callers, { pid }: ClusterProcess) =>
  [...answers.values()].filter((by) => by === pid).length;

describeHosts(4, 'A network of hosts', (hosts) => {
  const { node } = useClusterProcesses(tcp());

  /**
   * One node on each host. The last ones call and serve nothing. All have each other's addresses.
   */
  async function nodes(serving: number): Promise<ClusterProcess[]> {
    const all = await Promise.all(
      [1, 2, 3, 4].map((host) => {
        const peers = [1, 2, 3, 4]
          .slice(0, serving)
          .map((peer) => `${hosts.address(peer)}:${PORT}`);
        const options = {
          transport: Transport.TCP as const,
          options: { host: hosts.address(host), port: PORT },
          peers,
        };
        const where = { options, before: hosts.command(host) };
        return node({ host: where, distribution, servings: host <= serving ? servings : [] });
      }),
    );
    await Promise.all(all.map((each) => each.untilNodes('m', serving)));
    return all;
  }

  it('[11] When one node is cut off under load, others take over its calls, none fails, and it serves again when reconnected', async () => {
    const [a, b, c, web] = (await nodes(3)) as [
      ClusterProcess,
      ClusterProcess,
      ClusterProcess,
      ClusterProcess,
    ];
    const callers = new Callers(web, 'm');
    await callers.answered(200);
    await a.hold();
    await a.untilHeld();

    hosts.cut(1);
    const { stranded } = a;
    await Promise.all([
      web.untilNodes('m', 2),
      b.untilNodes('m', 2),
      c.untilNodes('m', 2),
      a.untilNodes('m', 1),
    ]);
    await callers.answered(200);
    const answered = stranded.map((id) => callers.answers.get(id));
    a.process.send('open');
    hosts.mend();
    await Promise.all([web, a, b, c].map((each) => each.untilNodes('m', 3)));
    await callers.answered(50, a.pid);
    await callers.end();

    expect(stranded.length).toBeGreaterThan(0);
    expect(answered.filter((pid) => pid !== b.pid && pid !== c.pid)).toEqual([]);
    callers.expectUnharmed();
  });

  it('[11] When two nodes cannot reach each other, each goes on with the others, and no call fails', async () => {
    const [a, b, near, far] = (await nodes(2)) as [
      ClusterProcess,
      ClusterProcess,
      ClusterProcess,
      ClusterProcess,
    ];
    const [parted, other] = [new Callers(near, 'm', 16), new Callers(far, 'm', 16)];
    await Promise.all([parted.answered(100), other.answered(100)]);

    hosts.part(1, 3);
    await near.untilNodes('m', 1);
    const before = answersOf(parted, a);
    await Promise.all([
      parted.answered(100, b.pid),
      other.answered(50, a.pid),
      other.answered(50, b.pid),
    ]);
    await Promise.all([far, a, b].map((each) => each.untilNodes('m', 2)));
    const after = answersOf(parted, a);
    hosts.mend();
    await near.untilNodes('m', 2);
    await parted.answered(50, a.pid);
    await Promise.all([parted.end(), other.end()]);

    expect(after).toBe(before);
    parted.expectUnharmed();
    other.expectUnharmed();
  });
});

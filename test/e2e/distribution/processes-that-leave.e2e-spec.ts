import { describe, expect, it } from '@jest/globals';
import { Callers } from '../../fixtures/callers.js';
import { useClusterProcesses } from '../../fixtures/use-cluster-processes.js';
import { wirings } from '../../fixtures/wirings.js';

const byItself = { code: 0, signal: null, output: '' };
const bySignal = { ...byItself, code: null, signal: 'SIGTERM' };

describe.each(wirings)('Processes of a cluster over $name that leave', (wiring) => {
  const { node, client } = useClusterProcesses(wiring);

  it('[11] [9.3] under load, one after the other, lose no call, and no row runs twice', async () => {
    // Nothing that was lost could run again.
    const servings = [{ name: 'm', batchSize: 4, idempotent: false }];
    const nodes = await Promise.all([1, 2, 3].map(() => node({ servings })));
    const web = await client({ attempts: 1 });
    await web.knows('m', 3);
    const callers = new Callers(web.servings, 'm');
    await callers.answered(300);

    const left = [];
    for (const leaving of nodes.slice(1)) {
      leaving.process.kill('SIGTERM');
      left.push(await leaving.process.ended);
      const next = await leaving.again();
      nodes.push(next);
      await callers.answered(20, next.pid);
    }
    await callers.end();

    callers.expectUnharmed();
    expect(left).toEqual([byItself, byItself]);
    const runs = nodes.flatMap(({ begun }) => begun);
    expect(runs.toSorted()).toEqual([...callers.answers.keys()].toSorted());
    expect(nodes.flatMap(({ stranded }) => stranded)).toEqual([]);
  });
});

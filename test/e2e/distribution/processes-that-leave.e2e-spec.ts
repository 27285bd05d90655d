import { expect, it } from '@jest/globals';
import { Callers } from '../../fixtures/http/callers.js';
import { useClusterProcesses } from '../../fixtures/cluster/use-cluster-processes.js';
import { describeWirings } from '../../fixtures/cluster/wirings.js';

const byItself = { code: 0, signal: null, output: '' };
const bySignal = { ...byItself, code: null, signal: 'SIGTERM' };

describeWirings('Processes of a cluster that leave', (wiring) => {
  const { node, client } = useClusterProcesses(wiring);

  it('[11] [9.3] When processes leave under load one after the other, no call is lost and no row runs twice', async () => {
    // A lost call could not run again.
    const servings = [{ name: 'm', batchSize: 4, recovery: { idempotent: false } }];
    const nodes = await Promise.all([1, 2, 3].map(() => node({ servings })));
    const web = await client({ attempts: 1 });
    await web.untilNodes('m', 3);
    const callers = new Callers(web.servings, 'm');
    await callers.answered(200);

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

  it.each([
    ['context', 'app.close()', byItself],
    ['context', 'SIGTERM', bySignal],
    ['http', 'app.close()', byItself],
    ['hybrid', 'SIGTERM', bySignal],
  ] as const)(
    '[11] [9.3] A process that leaves answers its calls, as an application of kind %s by %s',
    async (kind, way, end) => {
      const leaving = await node({
        kind,
        ending: 'hooks',
        servings: [{ name: 'm', batchSize: 4, recovery: { idempotent: false } }],
      });
      const web = await client();
      await web.untilNodes('m', 1);
      await leaving.hold();
      const rows = Array.from({ length: 20 }, (_, i) => ({ id: `${i}`, numbers: [i] }));

      const replies = rows.map((row) => web.servings.batchedRun('m', row));
      await leaving.process.messages('called', rows.length);
      if (way === 'SIGTERM') {
        leaving.process.kill(way);
      } else {
        leaving.process.send('close');
      }
      await leaving.process.messages('closing');
      leaving.process.send('open');

      expect(await Promise.all(replies)).toEqual(
        rows.map(({ id }, i) => ({ id, sum: i, serving: 'm', pid: leaving.pid })),
      );
      expect(await leaving.process.ended).toEqual(end);
      expect(leaving.begun.toSorted()).toEqual(rows.map(({ id }) => id).toSorted());
    },
  );

  it('[11] [9.3] A process that leaves answers over HTTP with what other nodes run for it', async () => {
    const model = await node({ servings: [{ name: 'm', batchSize: 1 }] });
    const front = await node({ kind: 'hybrid' });
    await model.hold();

    const answer = front.get('any/m/123');
    await model.untilHeld();
    front.process.kill('SIGTERM');
    await front.process.messages('closing');
    model.process.send('open');

    expect(await answer).toEqual({ id: '123', sum: 6, serving: 'm', pid: model.pid });
    expect(await front.process.ended).toEqual(byItself);
  });
});

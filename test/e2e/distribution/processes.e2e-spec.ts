import { expect, it } from '@jest/globals';
import { UnknownServingError } from 'nestjs-serving';
import { failureOf } from '../../fixtures/async/failure-of.js';
import { useClusterProcesses } from '../../fixtures/cluster/use-cluster-processes.js';
import { describeWirings } from '../../fixtures/cluster/wirings.js';

const row = (id: number) => ({ id: `${id}`, numbers: [id, 1] });
const answer = (id: number) => ({ id: `${id}`, sum: id + 1 });

describeWirings('Calls between processes of a cluster', (wiring) => {
  const { node, client } = useClusterProcesses(wiring);

  it('[11] Calls are distributed by the weights and partitions of the nodes', async () => {
    const serving = { name: 'm', batchSize: 32 };
    const nodes = await Promise.all([
      node({ servings: [serving] }),
      node({ servings: [{ ...serving, distribution: { weight: 1.5 }, partitions: 2 }] }),
      node({ servings: [{ ...serving, distribution: { weight: 0.5 }, partitions: 2 }] }),
      node({ servings: [{ ...serving, distribution: { weight: 0 } }] }),
    ]);
    const web = await client();
    await web.untilNodes('m', 3);
    const counts = new Map<number, number>();

    for (let round = 0; round < 8; round++) {
      const ids = Array.from({ length: 500 }, (_, i) => 500 * round + i);
      const answers = await Promise.all(
        ids.map((id) => web.servings.batchedRun<object, { pid: number }>('m', row(id))),
      );
      expect(answers).toEqual(ids.map((id) => expect.objectContaining(answer(id))));
      answers.forEach(({ pid }) => counts.set(pid, (counts.get(pid) ?? 0) + 1));
    }

    const shares = nodes.map(({ pid }) => (counts.get(pid) ?? 0) / 4000);
    [0.2, 0.6, 0.2].forEach((share, i) => expect(Math.abs(shares[i]! - share)).toBeLessThan(0.05));
    expect(shares[3]).toBe(0);
  });

  it("[11] [C5] Calls are preprocessed in the caller's process and postprocessed in the owner's", async () => {
    const owner = await node({ servings: [{ name: 'sides', as: 'sides' }] });
    const web = await client();
    await web.untilNodes('sides', 1);
    const definition = {
      name: 'sides',
      model: { useFactory: () => (rows: readonly unknown[]) => rows },
      distribution: {
        preprocess: ({ stages }: { stages: string[] }) => ({
          stages: [...stages, `here in ${process.pid}`],
        }),
      },
    };
    const onOwner = ['preprocess', 'batch', 'postprocess', 'distribution.postprocess'].map(
      (stage) => `${stage} in ${owner.pid}`,
    );

    expect(await web.servings.batchedRun(definition, { stages: [] })).toEqual({
      stages: [`here in ${process.pid}`, ...onOwner],
    });
    expect(await web.servings.batchedRun('sides', { stages: [] })).toEqual({ stages: onOwner });
  });

  it('[11] Calls stay in a process that has the serving and leave it on request or when it lacks the serving', async () => {
    const far = await node({ servings: [{ name: 'both' }, { name: 'far' }] });
    const near = await node({
      kind: 'http',
      servings: [{ name: 'both', distribution: { weight: 0 } }],
    });
    const web = await client();
    await Promise.all([web.untilNodes('both', 1), web.untilNodes('far', 1)]);
    // From then on the two nodes have found each other.
    expect(await near.get('any/far/1')).toMatchObject({ pid: far.pid });

    for (let id = 1; id < 9; id++) {
      expect(await near.get(`any/both/${id}`)).toMatchObject({ id: `${id}`, pid: near.pid });
      expect(await near.get(`local/both/${id}`)).toMatchObject({ id: `${id}`, pid: near.pid });
      expect(await near.get(`distributed/both/${id}`)).toMatchObject({ id: `${id}`, pid: far.pid });
    }
    expect(await near.get('local/far/1')).toMatchObject({ statusCode: 500 });
  });

  it('[11] A call fails when no process has its serving', async () => {
    await node({ servings: [{ name: 'm' }] });
    const web = await client({ discoveryTimeout: 100 });
    await web.untilNodes('m', 1);

    for (const serving of ['unknown', { local: 'm' }, { distributed: 'unknown' }]) {
      expect(await failureOf(web.servings.batchedRun(serving, row(1)))).toBeInstanceOf(
        UnknownServingError,
      );
    }
    expect(await web.servings.batchedRun({ distributed: 'm' }, row(1))).toMatchObject(answer(1));
  });

  it('[11] Calls reach servings and namespaces with any characters in their names', async () => {
    const names = ['a', 'a.b', 'a.*', 'a.>', '*', '>', '.', 'a b', '#{"', 'ä/€'];
    const namespaces = ['n.*', 'n.>'];
    const nodes = await Promise.all(
      namespaces.map((namespace) =>
        node({ servings: names.map((name) => ({ name })), distribution: { namespace } }),
      ),
    );
    const clients = await Promise.all(namespaces.map((namespace) => client({ namespace })));

    for (const [i, web] of clients.entries()) {
      await web.untilNodes('a', 1);
      const answers = await Promise.all(
        names.map((name, id) => web.servings.batchedRun(name, row(id))),
      );
      expect(answers).toEqual(
        names.map((serving, id) => ({ ...answer(id), serving, pid: nodes[i]!.pid })),
      );
    }
  });
});

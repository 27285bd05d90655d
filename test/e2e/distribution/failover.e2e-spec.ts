import { afterEach, describe, expect, it, jest } from '@jest/globals';
import { Batch, NodeLostError, OverloadedError, ServingClosedError } from 'nestjs-serving';
import type { FunctionServingDefinition } from '../../../lib/core/definition/serving-definition.js';
import { failureOf } from '../../fixtures/async/failure-of.js';
import { HeldFunction } from '../../fixtures/batching/held-function.js';
import { until } from '../../fixtures/async/streams.js';
import { turn } from '../../fixtures/async/virtual-time.js';
import { useCluster } from '../../fixtures/cluster/use-cluster.js';

const held = (name: string, options: Partial<FunctionServingDefinition> = {}) => {
  const batches = new HeldFunction();
  const definition: FunctionServingDefinition = {
    name,
    batchSize: 1,
    shutdown: { timeout: 50 },
    ...options,
    model: { useFactory: batches.useFactory },
  };
  return { batches, definition };
};

/** Answers the batch that runs there. */
const answer = ({ batches }: ReturnType<typeof held>, mark: string): void => {
  const batch = batches.next();
  batch.finish(batch.rows.map((row) => `${row} by ${mark}`));
};

const answering = (mark: string): FunctionServingDefinition => ({
  name: 'm',
  recovery: { idempotent: false },
  model: { useFactory: () => (rows: readonly number[]) => rows.map((row) => `${row} by ${mark}`) },
});

/** So many rows, and then a refusal. */
async function* refusedAfter(rows: number): AsyncGenerator<Batch, void> {
  for (let row = 1; row <= rows; row++) {
    yield Batch.ofValues([row]);
  }
  throw new OverloadedError('full');
}

describe('A call whose node is lost', () => {
  const cluster = useCluster();

  it('[11] A call of an idempotent serving runs again on another node', async () => {
    const [a, b] = [
      held('m', { recovery: { idempotent: true } }),
      held('m', { recovery: { idempotent: true } }),
    ];
    const [nodeA, nodeB] = [
      await cluster.node({ servings: [a.definition] }),
      await cluster.node({ servings: [b.definition] }),
    ];
    const web = await cluster.node();
    await web.untilNodes('m', 2);
    const reply = web.servings.batchedRun('m', 'row');
    await until(() => a.batches.batches.length + b.batches.batches.length === 1);
    const [first, second] = a.batches.batches.length === 1 ? [nodeA, b] : [nodeB, a];

    first.kill();
    await until(() => second.batches.batches.length === 1);
    answer(second, 'the other');

    expect(await reply).toBe('row by the other');
  });

  it('[11] A call of a serving that is not idempotent fails with the note that it may have run', async () => {
    const a = held('m');
    const nodeA = await cluster.node({ servings: [a.definition] });
    await cluster.node({ servings: [held('m', { distribution: { weight: 0 } }).definition] });
    const web = await cluster.node();
    await web.untilNodes('m', 1);
    const reply = failureOf(web.servings.batchedRun('m', 'row'));
    await until(() => a.batches.batches.length === 1);

    nodeA.kill();

    expect(await reply).toBeInstanceOf(NodeLostError);
    expect(await reply).toMatchObject({
      code: 'SERVING_NODE_LOST',
      message: expect.stringContaining('may have run'),
    });
  });

  it('[11] A node that refused a call does not count as one that ran it', async () => {
    const a = held('m', { queue: { maxRows: 1 } });
    const b = held('m', { recovery: { idempotent: true } });
    const full = await cluster.node({ nodeId: 'a', servings: [a.definition] });
    const own = [1, 2].map((row) => full.servings.batchedRun('m', row));
    await until(() => a.batches.batches.length === 1);
    const lost = await cluster.node({ nodeId: 'b', servings: [b.definition] });
    await cluster.node({ nodeId: 'c', servings: [answering('c')] });
    const web = await cluster.node({
      attempts: 2,
      balance: (owners) => owners.toSorted((one, other) => (one.id < other.id ? -1 : 1))[0],
    });
    await web.untilNodes('m', 3);
    const reply = web.servings.batchedRun('m', 'row');
    await until(() => b.batches.batches.length === 1);

    lost.kill();

    expect(await reply).toBe('row by c');
    expect(full.servings.counters().get('m')).toMatchObject({ failed: { SERVING_OVERLOADED: 1 } });
    answer(a, 'a');
    await until(() => a.batches.batches.length === 1);
    answer(a, 'a');
    expect(await Promise.all(own)).toEqual(['1 by a', '2 by a']);
  });

  it('[11] A stream that has begun runs on no other node, also when its node refuses the rest', async () => {
    const a: FunctionServingDefinition = {
      ...answering('a'),
      preprocess: (rows: number) => ({ batch: refusedAfter(rows) }),
    };
    await cluster.node({ nodeId: 'a', servings: [a] });
    await cluster.node({ nodeId: 'b', servings: [answering('b')] });
    const web = await cluster.node({
      balance: (owners) => owners.toSorted((one, other) => (one.id < other.id ? -1 : 1))[0],
    });
    await web.untilNodes('m', 2);
    const outputs: unknown[] = [];

    const reading = async (): Promise<void> => {
      for await (const { output } of web.servings.stream<number, string>('m', 1)) {
        outputs.push(output);
      }
    };

    expect(await failureOf(reading())).toBeInstanceOf(OverloadedError);
    expect(outputs.flat()).toEqual(['1 by a']);
  });

  it('[11] A call fails when it has run as often as its attempts allow', async () => {
    const nodes = await Promise.all(
      [1, 2].map(async () => {
        const serving = held('m', { recovery: { idempotent: true } });
        return { serving, node: await cluster.node({ servings: [serving.definition] }) };
      }),
    );
    const web = await cluster.node({ attempts: 2 });
    await web.untilNodes('m', 2);
    const reply = failureOf(web.servings.batchedRun('m', 'row'));
    for (let lost = 0; lost < 2; lost++) {
      await until(() => nodes.some(({ serving }) => serving.batches.batches.length === 1));
      const running = nodes.find(({ serving }) => serving.batches.batches.length === 1)!;
      running.serving.batches.next();
      running.node.kill();
    }

    expect(await reply).toBeInstanceOf(NodeLostError);
  });

  it('[11] A call runs elsewhere when its node is silent for too long', async () => {
    cluster.network({ connections: false });
    const [a, b] = [
      held('m', { recovery: { idempotent: true } }),
      held('m', { recovery: { idempotent: true } }),
    ];
    const quick = { heartbeat: 20, downAfter: 100, probeAfter: 1_000_000 };
    const nodeA = await cluster.node({ servings: [a.definition], ...quick });
    const web = await cluster.node(quick);
    await web.untilNodes('m');
    const reply = web.servings.batchedRun('m', 'row');
    await until(() => a.batches.batches.length === 1);

    nodeA.hang();
    await cluster.node({ servings: [b.definition], ...quick });
    await until(() => b.batches.batches.length === 1);
    answer(b, 'b');

    expect(await reply).toBe('row by b');
  });

  it('[11] A call runs elsewhere when the broker reports that its node is gone', async () => {
    cluster.network({ connections: false });
    const [a, b] = [
      held('m', { recovery: { idempotent: true } }),
      held('m', { recovery: { idempotent: true } }),
    ];
    const slow = { heartbeat: 60_000, probeAfter: 10 };
    const nodeA = await cluster.node({ servings: [a.definition], ...slow });
    const web = await cluster.node(slow);
    await web.untilNodes('m');
    const reply = web.servings.batchedRun('m', 'row');
    await until(() => a.batches.batches.length === 1);

    nodeA.kill();
    await cluster.node({ servings: [b.definition], ...slow });
    await until(() => b.batches.batches.length === 1);
    answer(b, 'b');

    expect(await reply).toBe('row by b');
  });
});

describe('A call whose caller counts as lost by mistake', () => {
  const cluster = useCluster();

  it.each([true, false])(
    '[11] A call ends at its node without waiting; idempotent: %s',
    async (idempotent) => {
      const m = held('m', { recovery: { idempotent } });
      const node = await cluster.node({ servings: [m.definition] });
      const web = await cluster.node();
      await web.untilNodes('m');
      const reply = web.servings.batchedRun('m', 'row');
      await until(() => m.batches.batches.length === 1);

      node.cluster.receiver.nodeDisconnected(web.address);
      answer(m, 'unread');

      if (idempotent) {
        await until(() => m.batches.batches.length === 1);
        answer(m, 'm');
        expect(await reply).toBe('row by m');
      } else {
        expect(await failureOf(reply)).toBeInstanceOf(NodeLostError);
      }
    },
  );
});

describe('While the broker is offline', () => {
  const cluster = useCluster();

  afterEach(() => {
    jest.restoreAllMocks();
  });

  it('[11] Calls wait, those in progress run again, and no node is lost', async () => {
    const network = cluster.network({ connections: false });
    const m = held('m', { recovery: { idempotent: true } });
    await cluster.node({ servings: [m.definition] });
    const web = await cluster.node();
    await web.untilNodes('m');
    const underWay = web.servings.batchedRun('m', 'under way');
    await until(() => m.batches.batches.length === 1);

    network.broker(false);
    await until(() => !web.cluster.selector.isOnline);
    answer(m, 'unread');
    const later = web.servings.batchedRun('m', 'later');
    await turn();
    // Longer than the discovery timeout, which must not run while the broker is offline.
    const now = performance.now.bind(performance);
    jest.spyOn(performance, 'now').mockImplementation(() => now() + 20_000);
    for (let i = 0; i < 20; i++) {
      await turn();
    }
    expect(m.batches.batches).toHaveLength(0);
    network.broker(true);
    for (let i = 0; i < 2; i++) {
      await until(() => m.batches.batches.length === 1);
      answer(m, 'm');
    }

    expect(await Promise.all([underWay, later])).toEqual(['under way by m', 'later by m']);
  });

  it('[11] Calls at a node that alone lost the broker run again when it returns', async () => {
    const network = cluster.network({ connections: false });
    const m = held('m', { recovery: { idempotent: true } });
    const patient = { downAfter: 60_000 };
    const node = await cluster.node({ servings: [m.definition], ...patient });
    const web = await cluster.node(patient);
    await web.untilNodes('m');
    const reply = web.servings.batchedRun('m', 'row');
    await until(() => m.batches.batches.length === 1);

    network.hang(node.address);
    node.cluster.receiver.online(false);
    answer(m, 'unread');
    network.resume(node.address);
    node.cluster.receiver.online(true);
    await until(() => m.batches.batches.length === 1);
    answer(m, 'm');

    expect(await reply).toBe('row by m');
  });

  it('[11] A node that has not found the others again is not called', async () => {
    const network = cluster.network({ connections: false });
    const slow = { heartbeat: 20, downAfter: 60_000, probeAfter: 1_000_000 };
    const node = await cluster.node({ servings: [answering('m')], ...slow });
    const web = await cluster.node(slow);
    await web.untilNodes('m');

    network.hang(node.address);
    [web, node].forEach(({ cluster: each }) => each.receiver.online(false));
    web.cluster.receiver.online(true);
    const reply = web.servings.batchedRun('m', 1);
    await turn();
    expect(
      web.cluster
        .nodes()
        .map(({ address }) => address)
        .toSorted(),
    ).toEqual([node.address, web.address].toSorted());
    network.resume(node.address);
    node.cluster.receiver.online(true);

    expect(await reply).toBe('1 by m');
  });
});

describe('A call that a node refuses', () => {
  const cluster = useCluster();

  it('[11] A refused call goes to another node, and fails with the last refusal when all refuse', async () => {
    const full = [held('m', { queue: { maxRows: 1 } }), held('m', { queue: { maxRows: 1 } })];
    const nodes = await Promise.all(
      full.map(({ definition }) => cluster.node({ servings: [definition] })),
    );
    const web = await cluster.node();
    await web.untilNodes('m', 2);
    const waiting = (): number =>
      full.reduce((sum, { batches }) => sum + batches.batches.length, 0) +
      nodes.reduce((sum, { servings }) => sum + servings.get('m').queued, 0);
    const replies: Promise<unknown>[] = [];
    for (let i = 1; i <= 4; i++) {
      replies.push(web.servings.batchedRun('m', `${i}`));
      await until(
        () => waiting() === i && full.some(({ batches }) => batches.batches.length === 1),
      );
      await turn();
    }

    expect(await failureOf(web.servings.batchedRun('m', 'too many'))).toBeInstanceOf(
      OverloadedError,
    );

    for (let answered = 0; answered < 4; answered++) {
      await until(() => full.some(({ batches }) => batches.batches.length === 1));
      answer(
        full.find(({ batches }) => batches.batches.length === 1)!,
        'x',
      );
    }
    expect(await Promise.all(replies)).toEqual(['1 by x', '2 by x', '3 by x', '4 by x']);
  });
});

describe('A node that shuts down', () => {
  const cluster = useCluster();

  it('[11] [9.3] A node that closes answers its calls and gets no more, and the others go on', async () => {
    const patient = { shutdown: { timeout: 30_000 } };
    const [a, b] = [held('m', patient), held('m', patient)];
    const nodeOf = ({ definition }: typeof a) =>
      cluster.node({ servings: [definition], drainTimeout: 30_000 });
    const [nodeA, nodeB] = [await nodeOf(a), await nodeOf(b)];
    const web = await cluster.node();
    await web.untilNodes('m', 2);
    const first = web.servings.batchedRun('m', 'first');
    await until(() => a.batches.batches.length + b.batches.batches.length === 1);
    const [closing, running, other] =
      a.batches.batches.length === 1 ? [nodeA, a, b] : [nodeB, b, a];

    const closed = closing.close();
    const others = Array.from({ length: 20 }, (_, i) => web.servings.batchedRun('m', `${i}`));
    for (let i = 0; i < 20; i++) {
      await until(() => other.batches.batches.length === 1);
      answer(other, 'other');
    }
    expect(await Promise.all(others)).toEqual(others.map((_, i) => `${i} by other`));
    answer(running, 'closing');

    expect(await first).toBe('first by closing');
    await closed;
  });

  it('[11] [9.3] Calls in transit to a node that closes go to another, also those that must not run twice', async () => {
    const closing = await cluster.node({ servings: [answering('a')] });
    await cluster.node({ servings: [answering('b')] });
    const web = await cluster.node();
    await web.untilNodes('m', 2);

    // About half of the calls are in transit to the node when it closes.
    const replies = Array.from({ length: 100 }, (_, i) => web.servings.batchedRun('m', i));
    await closing.close();

    expect(
      (await Promise.all(replies)).filter(
        (reply, i) => reply !== `${i} by a` && reply !== `${i} by b`,
      ),
    ).toEqual([]);
  });

  it('[11] [9.3] A node that closes fails its own unanswered calls', async () => {
    const a = held('m');
    await cluster.node({ servings: [a.definition] });
    const web = await cluster.node();
    await web.untilNodes('m');
    const reply = failureOf(web.servings.batchedRun('m', 'row'));
    await until(() => a.batches.batches.length === 1);

    await web.close();

    expect(await reply).toBeInstanceOf(ServingClosedError);
    answer(a, 'a');
  });

  it('[11] [9.3] A node that closes keeps no timer of a call that it could not answer', async () => {
    cluster.network({ connections: false });
    const [set, cleared] = [
      jest.spyOn(globalThis, 'setTimeout'),
      jest.spyOn(globalThis, 'clearTimeout'),
    ];
    const a = held('m');
    const nodeA = await cluster.node({ servings: [a.definition] });
    const web = await cluster.node();
    await web.untilNodes('m');
    const reply = failureOf(web.servings.batchedRun('m', 'row', { timeout: 1_000_000 }));
    await until(() => a.batches.batches.length === 1);

    await nodeA.close();
    await web.close();

    expect(await reply).toBeInstanceOf(Error);
    const long = set.mock.results
      .filter((_, i) => Number(set.mock.calls[i]![1]) > 900_000)
      .map(({ value }) => value);
    const kept = long.filter((timer) => cleared.mock.calls.every(([of]) => of !== timer)).length;
    expect({ set: long.length, kept }).toEqual({ set: 2, kept: 0 });
    jest.restoreAllMocks();
  });
});

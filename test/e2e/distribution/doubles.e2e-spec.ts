import { describe, expect, it, jest } from '@jest/globals';
import { Logger } from '@nestjs/common';
import { useCluster } from '../../fixtures/cluster/use-cluster.js';
import { until } from '../../fixtures/async/streams.js';

const quick = { heartbeat: 50, downAfter: 300 };
const servings = (mark: string) => [
  { name: 'm', model: { useFactory: () => (rows: readonly unknown[]) => rows.map(() => mark) } },
];

describe('Nodes with one nodeId', () => {
  const cluster = useCluster();

  it('[11] Every node reports a duplicate nodeId, and the node that started last goes on', async () => {
    const error = jest.spyOn(Logger.prototype, 'error').mockReturnValue();
    const first = await cluster.node({ nodeId: 'same', servings: servings('first'), ...quick });
    const web = await cluster.node(quick);
    await web.untilNodes('m');
    const last = await cluster.node({ nodeId: 'same', servings: servings('last'), ...quick });

    await until(() => error.mock.calls.length >= 3);
    const messages = error.mock.calls.map(([message]) => String(message));
    const answer = await web.servings.batchedRun('m', 1);
    error.mockRestore();

    for (const message of messages) {
      expect(message).toMatch(/^Two nodes have the nodeId "same": /);
      expect([first, last].every(({ address }) => message.includes(address))).toBe(true);
    }
    expect(answer).toBe('last');
  });

  it('[11] The calls of the node that started first end at once, as others count it as lost', async () => {
    const error = jest.spyOn(Logger.prototype, 'error').mockReturnValue();
    let finish: ((rows: string[]) => void) | undefined;
    const begun = jest.fn(() => new Promise<string[]>((resolve) => (finish = resolve)));
    await cluster.node({
      servings: [
        { name: 'm', model: { useFactory: () => begun }, recovery: { idempotent: false } },
      ],
      ...quick,
    });
    const first = await cluster.node({ nodeId: 'same', ...quick });
    await first.untilNodes('m');
    const ended = expect(first.servings.batchedRun('m', 1)).rejects.toThrow(
      'counted its caller as lost',
    );
    await until(() => begun.mock.calls.length > 0);

    await cluster.node({ nodeId: 'same', ...quick });

    await ended;
    error.mockRestore();
    finish?.(['nobody']);
  });
});

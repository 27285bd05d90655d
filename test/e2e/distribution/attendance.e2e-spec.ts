import { beforeEach, describe, expect, it, jest } from '@jest/globals';
import { Logger } from '@nestjs/common';
import type { ServingDefinition } from 'nestjs-serving';
import { Messenger } from '../../../lib/extensions/distribution/wire/messenger.js';
import { recordWarnings } from '../../fixtures/recorded-warnings.js';
import { until } from '../../fixtures/async/awaited.js';
import { useCluster } from '../../fixtures/cluster/use-cluster.js';

const serving = (name: string): ServingDefinition => ({
  name,
  model: { useFactory: () => (rows: readonly unknown[]) => rows },
});

describe('The log of a node', () => {
  const cluster = useCluster();
  let lines: string[];

  beforeEach(() => {
    lines = [];
    const keep = (line: string): void => void (/\b(node|client) "/i.test(line) && lines.push(line));
    jest.spyOn(Logger.prototype, 'log').mockImplementation(keep);
    jest
      .spyOn(Logger.prototype, 'warn')
      .mockImplementation((line: string) => keep(`warning: ${line}`));
  });

  /** The lines about other nodes. */
  const ofOthers = () => lines.filter((line) => !line.startsWith('This is'));

  it('[11] The log has the node itself and the nodes that join and leave', async () => {
    const model = await cluster.node({ nodeId: 'model', servings: [serving('a'), serving('b')] });
    expect(lines.splice(0)).toEqual(['This is node "model" in the namespace "default"']);

    const web = await cluster.node({ nodeId: 'web' });
    await until(() => lines.length === 3);
    expect(lines.splice(0).toSorted()).toEqual([
      'Client "web" has joined',
      'Node "model" has joined and serves "a", "b"',
      'This is client "web" in the namespace "default"',
    ]);

    await model.close();
    await until(() => lines.length > 0);
    expect(lines).toEqual(['Node "model" has left']);
    await web.close();
  });

  it('[11] The log warns when a node is lost and reports its return', async () => {
    const model = await cluster.node({ nodeId: 'model', servings: [serving('a')] });
    const web = await cluster.node({ nodeId: 'web' });
    await web.untilNodes('a');
    await until(() => ofOthers().length === 2);
    lines.length = 0;

    model.kill();
    await until(() => ofOthers().length > 0);
    expect(ofOthers()).toEqual([
      'warning: Node "model" is lost: it cannot be reached any more and was not shutting down',
    ]);
    lines.length = 0;
    await cluster.node({ nodeId: 'model', servings: [serving('a')] });
    await web.untilNodes('a');
    await until(() => ofOthers().length === 2);
    expect(ofOthers().toSorted()).toEqual([
      'Client "web" has joined',
      'Node "model" has joined and serves "a"',
    ]);
  });

  it('[11] Nodes that return with the broker are not logged', async () => {
    const network = cluster.network({ connections: false });
    await cluster.node({ nodeId: 'model', servings: [serving('a')] });
    const web = await cluster.node({ nodeId: 'web' });
    await web.untilNodes('a');
    await until(() => ofOthers().length === 2);
    lines.length = 0;

    network.broker(false);
    await until(() => !web.cluster.selector.isOnline);
    network.broker(true);
    await until(() => web.cluster.selector.isOnline);
    await web.untilNodes('a');

    expect(lines).toEqual([]);
  });

  it('[11] Nodes with another secret lead to one warning', async () => {
    const warnings = recordWarnings();
    const secrets = ['one that is long enough', 'another that is, too'];

    const nodes = await Promise.all(
      secrets.map((secret) => cluster.node({ secret, heartbeat: 10, servings: [serving('a')] })),
    );
    const broadcasts = jest.spyOn(Messenger.prototype, 'broadcast');
    await until(() => broadcasts.mock.calls.length > 10 * nodes.length);

    const complaint =
      'A message cannot be read: A packet whose signature is wrong: do all nodes have the same secret and namespace?';
    expect(warnings).toEqual([complaint, complaint]);
  });
});

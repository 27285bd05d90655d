import { describe, expect, it } from '@jest/globals';
import { VirtualTime } from 'nestjs-serving/testing';
import { TcpTransport } from '../../../lib/extensions/distribution/transports/tcp/tcp.transport.js';
import { type AppProcess, useAppProcesses } from '../../fixtures/http/app-process.js';
import { Awaited, until } from '../../fixtures/async/awaited.js';
import { useBreakableLinks } from '../../fixtures/cluster/breakable-link.js';
import {
  expectEndAt128MiB,
  expectStopAfter5Seconds,
  testDialling,
} from '../../fixtures/cluster/dialling-nodes.js';
import {
  describeTransport,
  type Joined,
  useNodes,
} from '../../fixtures/cluster/every-transport.js';
import { numberedPacket } from '../../fixtures/async/recording-receiver.js';
import { has, useTcpNodes } from '../../fixtures/cluster/tcp-nodes.js';

const { start } = useTcpNodes();
const startProcess = useAppProcesses();
const breakable = useBreakableLinks();

/** Starts a process with a node, at a port if given. */
function startNode(address: string, port?: number): AppProcess {
  const settings = port === undefined ? {} : { options: { port } };
  return startProcess('node', { transport: 'tcp', settings, address });
}

/** Starts a process with the node b, and a node that is connected with it. */
async function startLinked(): Promise<readonly [here: Joined<TcpTransport>, there: AppProcess]> {
  const there = startNode('b');
  const [port] = await there.messages<number>('started');
  const here = await start('a', { peers: [`127.0.0.1:${port}`] });
  await here.recorded.until(has('found b'));
  return [here, there];
}

/** Each node dials all earlier ones. */
const join = useNodes<TcpTransport>(
  (others) =>
    new TcpTransport({
      peers: others.flatMap(({ port }) => (port ? [{ host: '127.0.0.1', port }] : [])),
    }),
);

describeTransport({ name: 'TCP', connections: true, join });

describe('connections', () => {
  testDialling({ start, startProcess: startNode });

  it('[11] An open connection stays when the peer is no longer listed, and is not opened again', async () => {
    const a = await start('a');
    const way = await breakable(a.transport.port!);
    const lists = [[`127.0.0.1:${way.port}`], []];
    const time = await VirtualTime.install();
    try {
      const b = await start('b', { peers: () => lists.shift() ?? [] });
      await b.recorded.until(has('found a'));
      await time.advance(10_000);
      expect(lists).toEqual([]);
      b.transport.send('a', numberedPacket(1));
      await a.recorded.until(({ packets }) => packets.length === 1);
      way.break();
      await b.recorded.until(has('gone a'));
      await time.advance(60_000);

      expect(way.made).toBe(1);
    } finally {
      time.restore();
    }
  });

  it('[11] A node that dials itself dials there again only after a pause', async () => {
    const own = new Awaited<number>();
    const way = await breakable(own.value);
    const time = await VirtualTime.install();
    try {
      const a = await start('a', { peers: [`127.0.0.1:${way.port}`] });
      own.give(a.transport.port!);
      await until(() => way.made === 1 && way.open === 0);
      await time.advance(1_900);
      expect(way.made).toBe(1);
      await time.advance(200);
      await until(() => way.made === 2 && way.open === 0);
      expect(a.recorded.events).toEqual([]);
    } finally {
      time.restore();
    }
  });

  it('[11] The connection to a node that does not read ends when 128 MiB wait', async () => {
    const [a, stopped] = await startLinked();

    stopped.kill('SIGSTOP');

    await expectEndAt128MiB(a);
  });

  it('[11] A node that does not read delays stopping by 5 seconds', async () => {
    const [a, stopped] = await startLinked();
    const time = await VirtualTime.install();
    try {
      stopped.kill('SIGSTOP');
      await expectStopAfter5Seconds(a, time);
    } finally {
      time.restore();
    }
  });
});

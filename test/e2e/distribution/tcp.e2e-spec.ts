import { setImmediate as turn } from 'node:timers/promises';
import { describe, expect, it } from '@jest/globals';
import { VirtualTime } from 'nestjs-serving/testing';
import { TcpTransport } from '../../../lib/distribution/transports/tcp/tcp.transport.js';
import { useAppProcesses } from '../../fixtures/http/app-process.js';
import { Awaited, until } from '../../fixtures/async/awaited.js';
import { useBreakableLinks } from '../../fixtures/cluster/breakable-link.js';
import { describeTransport, useNodes } from '../../fixtures/cluster/every-transport.js';
import { numberedPacket } from '../../fixtures/async/recording-receiver.js';
import { has, useTcpNodes } from '../../fixtures/cluster/tcp-nodes.js';

const { start } = useTcpNodes();
const startProcess = useAppProcesses();
const breakable = useBreakableLinks();

/** Each node dials all earlier ones. */
const join = useNodes<TcpTransport>(
  (others) =>
    new TcpTransport({
      peers: others.flatMap(({ port }) => (port ? [{ host: '127.0.0.1', port }] : [])),
    }),
);

describeTransport({ name: 'TCP', connections: true, join });

describe('connections', () => {
  it('[11] Two nodes that dial each other and themselves by several paths have one connection', async () => {
    for (let round = 0; round < 10; round++) {
      // The connection is made when both nodes listen, so that all dial at once.
      const [toA, toB] = [new Awaited<number>(), new Awaited<number>()];
      const ways = await Promise.all([toA, toA, toB, toB].map((port) => breakable(port.value)));
      const peers = ways.map(({ port }) => `127.0.0.1:${port}`);
      const [a, b] = await Promise.all([start('a', { peers }), start('b', { peers })]);
      toB.give(b.transport.port!);
      toA.give(a.transport.port!);

      await Promise.all([a.recorded.until(has('found b')), b.recorded.until(has('found a'))]);
      a.transport.send('b', numberedPacket(1));
      b.transport.send('a', numberedPacket(2));
      await until(() => ways.reduce((open, way) => open + way.open, 0) === 1);
      await Promise.all(
        [a, b].map(({ recorded }) => recorded.until(({ packets }) => packets.length === 1)),
      );

      expect([a.recorded.events, b.recorded.events]).toEqual([['found b'], ['found a']]);
      await Promise.all([a.transport.stop(), b.transport.stop()]);
    }
  });

  it('[11] A broken connection is reported to both ends and opened again while the peer is listed', async () => {
    const a = await start('a');
    const way = await breakable(a.transport.port!);
    const b = await start('b', { peers: [`127.0.0.1:${way.port}`] });

    for (let times = 1; times <= 3; times++) {
      await Promise.all([
        a.recorded.until(has('found b', times)),
        b.recorded.until(has('found a', times)),
      ]);
      b.transport.send('a', numberedPacket(times));
      await a.recorded.until(({ packets }) => packets.length === times);
      way.break();
    }
    await Promise.all([a.recorded.until(has('gone b', 3)), b.recorded.until(has('gone a', 3))]);

    expect(a.recorded.numbers).toEqual([1, 2, 3]);
  });

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

  it('[11] A node that dials itself does not dial there again', async () => {
    const own = new Awaited<number>();
    const way = await breakable(own.value);
    const time = await VirtualTime.install();
    try {
      const a = await start('a', { peers: [`127.0.0.1:${way.port}`] });
      own.give(a.transport.port!);
      await until(() => way.made === 1 && way.open === 0);
      await time.advance(60_000);

      expect(way.made).toBe(1);
      expect(a.recorded.events).toEqual([]);
    } finally {
      time.restore();
    }
  });

  it('[11] A node that is killed is gone, and its next incarnation is found', async () => {
    const killed = startProcess('node', { transport: 'tcp', settings: {}, address: 'b-1' });
    const [port] = await killed.told<number>('started');
    const a = await start('a', { peers: [`127.0.0.1:${port}`] });
    await a.recorded.until(has('found b-1'));

    killed.kill('SIGKILL');
    await a.recorded.until(has('gone b-1'));
    expect(() => a.transport.send('b-1', numberedPacket(1))).toThrow('There is no node b-1');
    const next = startProcess('node', {
      transport: 'tcp',
      settings: { options: { port } },
      address: 'b-2',
    });
    await a.recorded.until(has('found b-2'));
    a.transport.send('b-2', numberedPacket(2));

    expect(await next.told('received')).toEqual([2]);
  });

  it('[11] The connection to a node that does not read ends when 128 MiB wait', async () => {
    const stopped = startProcess('node', { transport: 'tcp', settings: {}, address: 'b' });
    const [port] = await stopped.told<number>('started');
    const a = await start('a', { peers: [`127.0.0.1:${port}`] });
    await a.recorded.until(has('found b'));
    const packet = numberedPacket(1, a.transport.maxPacket);
    let sent = 0;

    stopped.kill('SIGSTOP');
    while (!has('gone b')(a.recorded)) {
      a.transport.send('b', packet);
      sent++;
      await turn();
    }

    expect(sent * packet.byteLength).toBeGreaterThan(128 * 1024 * 1024);
    expect(sent * packet.byteLength).toBeLessThan(160 * 1024 * 1024);
  });

  it('[11] A node that does not read delays stopping by 5 seconds', async () => {
    const stopped = startProcess('node', { transport: 'tcp', settings: {}, address: 'b' });
    const [port] = await stopped.told<number>('started');
    const a = await start('a', { peers: [`127.0.0.1:${port}`] });
    await a.recorded.until(has('found b'));
    const time = await VirtualTime.install();
    try {
      stopped.kill('SIGSTOP');
      for (let i = 0; i < 64; i++) {
        a.transport.send('b', numberedPacket(i, a.transport.maxPacket));
      }
      let hasStopped = false;
      const stopping = a.transport.stop().then(() => (hasStopped = true));
      await time.advance(4_999);
      expect(hasStopped).toBe(false);
      await time.advance(1);
      await stopping;
    } finally {
      time.restore();
    }
  });
});

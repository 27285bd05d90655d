import { beforeEach, describe, expect, it } from '@jest/globals';
import {
  NodeGoneError,
  type TransportContext,
} from '../../../lib/extensions/distribution/transport.js';
import { MemoryNetwork } from '../../../lib/extensions/distribution/memory-network.js';
import { describeTransport, useNodes } from '../../fixtures/cluster/every-transport.js';
import {
  contextOf,
  numberedPacket,
  RecordingReceiver,
} from '../../fixtures/async/recording-receiver.js';
import { turn } from '../../fixtures/async/virtual-time.js';

async function join(network: MemoryNetwork, address: string, parts?: Partial<TransportContext>) {
  const recorded = new RecordingReceiver();
  const transport = network.transport();
  await transport.start(contextOf(address, recorded, parts));
  return { recorded, transport };
}

async function two(network: MemoryNetwork) {
  const nodes = [await join(network, 'a'), await join(network, 'b')] as const;
  await turn();
  return nodes;
}

it('[11] Packets arrive in order, in a later turn and as copies', async () => {
  const [a, b] = await two(new MemoryNetwork());
  const packet = numberedPacket(1);

  a.transport.send('b', packet);
  a.transport.send('b', numberedPacket(2));
  await Promise.resolve();
  expect(b.recorded.packets).toEqual([]);
  await turn();

  expect(b.recorded.numbers).toEqual([1, 2]);
  expect(b.recorded.packets[0]).toEqual(new Uint8Array(packet));
  expect(b.recorded.packets[0]!.buffer).not.toBe(packet.buffer);
  expect(a.recorded.packets).toEqual([]);
});

it('[11] Nodes find each other and clients, and clients find nodes only', async () => {
  const network = new MemoryNetwork();
  const [a] = await two(network);
  const client = await join(network, 'c', { role: 'client' });
  const other = await join(network, 'd', { role: 'client' });
  await join(network, 'e', { namespace: 'another' });
  await turn();

  expect(a.recorded.events).toEqual(['found b', 'found c', 'found d']);
  expect(client.recorded.events).toEqual(['found a', 'found b']);
  expect(() => client.transport.send('d', numberedPacket(1))).toThrow(NodeGoneError);
  expect(() => client.transport.send('e', numberedPacket(1))).toThrow(NodeGoneError);
  expect(other.recorded.events).toEqual(['found a', 'found b']);
});

it('[11] A broadcast reaches all members except its sender', async () => {
  const network = new MemoryNetwork();
  const [a, b] = await two(network);
  const client = await join(network, 'c', { role: 'client' });

  a.transport.broadcast(numberedPacket(7));
  await turn();

  expect([a, b, client].map(({ recorded }) => recorded.numbers)).toEqual([[], [7], [7]]);
});

it('[11] Packets sent before a node stops arrive, and then it is gone', async () => {
  const [a, b] = await two(new MemoryNetwork());

  a.transport.send('b', numberedPacket(1));
  await a.transport.stop();
  await turn();

  expect(b.recorded.numbers).toEqual([1]);
  expect(b.recorded.events).toEqual(['found a', 'gone a']);
  expect(() => b.transport.send('a', numberedPacket(1))).toThrow('There is no node a');
});

it('[11] Packets from and to a killed node are lost', async () => {
  const network = new MemoryNetwork();
  const [a, b] = await two(network);

  a.transport.send('b', numberedPacket(1));
  b.transport.send('a', numberedPacket(2));
  network.disconnect('a', 'b');
  network.kill('a');
  expect(() => b.transport.send('a', numberedPacket(3))).toThrow(NodeGoneError);
  await turn();

  expect([a.recorded.numbers, b.recorded.numbers]).toEqual([[], []]);
  expect([a.recorded.events, b.recorded.events]).toEqual([['found b'], ['found a', 'gone a']]);
});

it('[11] Packets across a cut, or to and from a node that hangs, are lost without notice', async () => {
  const network = new MemoryNetwork();
  const [a, b] = await two(network);
  const both = async (number: number): Promise<void> => {
    a.transport.send('b', numberedPacket(number));
    b.transport.send('a', numberedPacket(number));
    await turn();
  };

  network.cut('b', 'a');
  await both(1);
  network.mend('a', 'b');
  await both(2);
  network.hang('a');
  await both(3);
  network.resume('a');
  await both(4);

  expect([a.recorded.numbers, b.recorded.numbers]).toEqual([
    [2, 4],
    [2, 4],
  ]);
  expect(a.recorded.events).toEqual(['found b']);
});

it('[11] Both ends of a broken connection are notified', async () => {
  const network = new MemoryNetwork();
  const [a, b] = await two(network);

  network.disconnect('a', 'b');
  expect(() => a.transport.send('b', numberedPacket(1))).toThrow(NodeGoneError);
  network.mend('a', 'b');
  await turn();

  expect(a.recorded.events).toEqual(['found b', 'gone b', 'found b']);
  expect(b.recorded.events).toEqual(['found a', 'gone a', 'found a']);
});

it('[11] With a broker no member is announced, packets to unknown members are lost, and probes are answered', async () => {
  const network = new MemoryNetwork({ connections: false });
  const [a, b] = await two(network);

  a.transport.send('nobody', numberedPacket(1));
  a.transport.send('b', numberedPacket(2));
  await turn();

  expect(b.recorded.numbers).toEqual([2]);
  expect(a.recorded.events).toEqual([]);
  await expect(a.transport.probe!('b')).resolves.toBe(true);
  await expect(a.transport.probe!('nobody')).resolves.toBe(false);
  network.hang('b');
  await expect(a.transport.probe!('b')).rejects.toThrow('There was no answer from b');
  network.kill('b');
  await expect(a.transport.probe!('b')).resolves.toBe(false);
  expect(new MemoryNetwork().transport().probe).toBeUndefined();
});

it('[11] All members are notified when the broker goes and returns', async () => {
  const network = new MemoryNetwork({ connections: false });
  const [a, b] = await two(network);

  network.broker(false);
  a.transport.send('b', numberedPacket(1));
  await expect(a.transport.probe!('b')).rejects.toThrow('no answer');
  network.broker(true);
  a.transport.send('b', numberedPacket(2));
  await turn();

  expect(b.recorded.numbers).toEqual([2]);
  expect(a.recorded.events).toEqual(['offline', 'online']);
});

describe.each([true, false])('with connections: %s', (connections) => {
  let network: MemoryNetwork;
  beforeEach(() => void (network = new MemoryNetwork({ connections })));

  describeTransport({ name: 'memory', connections, join: useNodes(() => network.transport()) });
});

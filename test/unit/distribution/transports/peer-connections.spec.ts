import { once } from 'node:events';
import { Socket } from 'node:net';
import { expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { PeerConnections } from '../../../../lib/extensions/distribution/transports/peer-connections.js';
import { TcpLink } from '../../../../lib/extensions/distribution/transports/tcp/tcp.transport.js';
import { numberedPacket, RecordingReceiver } from '../../../fixtures/async/recording-receiver.js';
import { turn } from '../../../fixtures/async/virtual-time.js';

/** One end of a connection that transmits only its end. */
class End extends Socket {
  other!: End;

  static pair(): readonly [End, End] {
    const ends = [new End(), new End()] as const;
    ends.forEach((end, i) => {
      end.other = ends[1 - i]!;
      end.once('close', () => end.other.destroy());
    });
    return ends;
  }
}

function nodes(...addresses: readonly string[]) {
  return addresses.map((address) => {
    const recorded = new RecordingReceiver();
    return {
      address,
      recorded,
      links: new PeerConnections<Socket, TcpLink>(
        address,
        recorded,
        (...parts) => new TcpLink(...parts),
      ),
    };
  });
}

it('[11] Two nodes that dial each other have one connection, for any order of their messages', async () => {
  const dials = fc.array(fc.boolean(), { minLength: 1, maxLength: 5 });

  await fc.assert(
    fc.asyncProperty(dials, fc.scheduler(), async (ways, scheduler) => {
      const both = nodes('a', 'b');
      const dialling = ways.map(async (isForth) => {
        const [from, to] = isForth ? [both[0]!, both[1]!] : [both[1]!, both[0]!];
        const [near, far] = End.pair();
        await scheduler.schedule(Promise.resolve());
        const link = await from.links.propose(to.address, near, async () => {
          await scheduler.schedule(Promise.resolve());
          const isAccepted = to.links.accept(from.address, far);
          await scheduler.schedule(Promise.resolve());
          return isAccepted;
        });
        if (!link) {
          near.destroy();
        }
      });
      await scheduler.waitFor(Promise.all(dialling));
      await turn();

      const [a, b] = both.map(({ links }) => [...links.all]);
      expect([a!.length, b!.length]).toEqual([1, 1]);
      const { socket } = a![0]!;
      expect(socket instanceof End && socket.other === b![0]!.socket).toBe(true);
      expect(both.map(({ recorded }) => recorded.events)).toEqual([['found b'], ['found a']]);
      socket.destroy();
      await turn();
      expect(both.map(({ recorded }) => recorded.events.slice(1))).toEqual([
        ['gone b'],
        ['gone a'],
      ]);
    }),
  );
});

it('[11] Packets before the answer to a proposal are delivered in order once the connection is accepted', async () => {
  const [a] = nodes('a');
  const [near] = End.pair();

  const link = await a!.links.propose('b', near, async () => {
    near.emit('packet', numberedPacket(1));
    near.emit('packet', numberedPacket(2));
    expect(a!.recorded.packets).toEqual([]);
    return true;
  });
  near.emit('packet', numberedPacket(3));

  expect(a!.recorded.numbers).toEqual([1, 2, 3]);
  expect(a!.links.get('b')).toBe(link);
});

it('[11] A connection that was refused or ended during the proposal is not kept', async () => {
  const [a] = nodes('a');
  const [near] = End.pair();

  await expect(a!.links.propose('b', near, async () => false)).resolves.toBeUndefined();
  await expect(
    a!.links.propose('b', near, () => Promise.reject(new Error('closed'))),
  ).rejects.toThrow('closed');
  expect(near.listenerCount('packet')).toBe(0);
  expect(a!.recorded.events).toEqual([]);
  await a!.links.propose('b', near, async () => {
    await once(near.destroy(), 'close');
    return true;
  });
  await turn();
  expect(a!.recorded.events).toEqual(['found b', 'gone b']);
});

it('[11] The node with the greater address replaces its connection by a new one and ignores the old one', async () => {
  const [b] = nodes('b');
  const [[first], [second]] = [End.pair(), End.pair()];

  expect(b!.links.accept('a', first)).toBe(true);
  expect(b!.links.accept('a', second)).toBe(true);
  first.emit('packet', numberedPacket(1));
  second.emit('packet', numberedPacket(2));
  await turn();

  expect(first.destroyed).toBe(true);
  expect(b!.recorded.events).toEqual(['found a', 'gone a', 'found a']);
  expect(b!.recorded.numbers).toEqual([2]);
});

it('[11] No connection is accepted or reported while a node stops', async () => {
  const [a] = nodes('a');
  const [near] = End.pair();
  a!.links.accept('b', near);

  const open = a!.links.close();
  near.destroy();
  await turn();

  expect(open.map(({ address }) => address)).toEqual(['b']);
  expect(a!.links.get('b')).toBeUndefined();
  expect(a!.links.accept('b', near)).toBe(false);
  await expect(a!.links.propose('b', near, async () => true)).resolves.toBeUndefined();
  expect(a!.recorded.events).toEqual(['found b']);
});

it('[L7] A peer that sends more than 4 MiB before answering a proposal is not connected', async () => {
  const [a] = nodes('a');
  const [near] = End.pair();
  const answer = async (): Promise<boolean> => {
    for (let i = 0; i < 10; i++) {
      near.emit('packet', numberedPacket(i, 1024 * 1024));
    }
    return true;
  };

  await expect(a!.links.propose('b', near, answer)).rejects.toThrow(
    'before it answered; at most 4194304 are allowed',
  );
  expect(a!.recorded.events).toEqual([]);
  expect(a!.recorded.packets).toEqual([]);
  near.destroy();
});

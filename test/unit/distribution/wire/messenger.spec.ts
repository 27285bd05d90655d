import { describe, expect, it } from '@jest/globals';
import { type Message, Messenger } from '../../../../lib/extensions/distribution/wire/messenger.js';
import type { ServingTransport } from '../../../../lib/extensions/distribution/transport.js';
import { defaultWireLimits } from '../../../../lib/extensions/distribution/wire/limits.js';
import { decodeFrame } from '../../../../lib/extensions/distribution/wire/frame.js';
import { type FrameError, Kind } from '../../../../lib/extensions/distribution/wire/prelude.js';
import { encodeValue } from '../../../../lib/extensions/distribution/wire/values.js';
import { turn } from '../../../fixtures/async/virtual-time.js';

/** A messenger whose packets are collected here. */
function messengerOf(address: string, window?: number) {
  const packets: Uint8Array[] = [];
  const messages: Message[] = [];
  const errors: FrameError[] = [];
  const receivers: string[] = [];
  const keep = (packet: Uint8Array): void => void packets.push(packet.slice());
  const transport = {
    maxPacket: 1 << 18,
    ...(window !== undefined && { window }),
    start: async () => {},
    send: async (to, packet) => {
      receivers.push(to);
      await turn();
      keep(packet);
    },
    broadcast: keep,
    stop: async () => {},
  } satisfies ServingTransport;
  const messenger = new Messenger({
    address,
    transport,
    limits: defaultWireLimits,
    secret: 'known to all of the nodes',
    onMessage: (message) => messages.push(message),
    onTooLarge: () => {},
    onInvalidFrame: (error) => errors.push(error),
  });
  let returned = 0;
  /** Returns the marks of this messenger, as its receivers do, until the promise is settled. */
  const returnMarks = async (sent: Promise<unknown>): Promise<void> => {
    const progress = { isSettled: false };
    const settled = () => (progress.isSettled = true);
    sent.then(settled, settled);
    while (!progress.isSettled) {
      await turn();
      for (; returned < packets.length; returned++) {
        const { kind, call, timeout, header } = decodeFrame(packets[returned]!, defaultWireLimits);
        if (kind === Kind.mark) {
          messenger.marked({ kind, call, timeout, header, from: receivers[returned]! });
        }
      }
    }
  };
  return { messenger, transport, packets, messages, errors, returnMarks };
}

const cancel = { kind: Kind.cancel, call: 1 };

const reply = (count: number, call = 0) => ({ kind: Kind.reply, call, value: bytes(count) });

const bytes = (count: number) => encodeValue(new Uint8Array(count), defaultWireLimits);

const kindsOf = (packets: readonly Uint8Array[]) => packets.map((packet) => packet[4]);
const dataOf = (packets: readonly Uint8Array[]) =>
  packets.map((packet) => decodeFrame(packet, defaultWireLimits)).filter(({ kind }) => kind < 32);

describe('Messenger', () => {
  it('[11] Frames for the own node are read, and frames signed for another are refused', async () => {
    const [sender, receiver, other] = [
      messengerOf('sender'),
      messengerOf('receiver'),
      messengerOf('other'),
    ];
    await sender.messenger.send('receiver', cancel);
    const [packet] = sender.packets;

    other.messenger.receive(packet!.slice());
    receiver.messenger.receive(packet!.slice());

    expect(other.messages).toEqual([]);
    expect(other.errors).toMatchObject([{ message: 'A frame is for another node' }]);
    expect(receiver.messages).toMatchObject([{ kind: Kind.cancel, from: 'sender', call: 1 }]);
  });

  it('[11] Broadcasts carry the state of nodes and no calls', async () => {
    const [sender, receiver] = [messengerOf('sender'), messengerOf('receiver')];
    await sender.messenger.broadcast({ kind: Kind.hello });
    await sender.messenger.broadcast(cancel);

    sender.packets.forEach((packet) => receiver.messenger.receive(packet));

    expect(receiver.messages).toMatchObject([{ kind: Kind.hello }]);
    expect(receiver.errors).toMatchObject([{ message: 'A frame is for another node' }]);
  });

  it('[11] Large frames are sent one after the other to each node, which assembles only one at a time', async () => {
    const { messenger, packets, returnMarks } = messengerOf('sender', 1 << 18);
    const large = ['one', 'one', 'other', 'one'].map((to, call) =>
      messenger.send(to, reply(1 << 20, call)),
    );
    const sent = Promise.all([...large, messenger.send('one', reply(8, 4))]);
    await returnMarks(sent);

    const kinds = packets.map((packet) => {
      const { kind, header } = decodeFrame(packet, defaultWireLimits);
      return kind === Kind.fragment ? header['id'] : kind === Kind.reply ? 'whole' : 'mark';
    });
    const first = [0, 1, 2, 3].map((id) => kinds.indexOf(id));
    const last = [0, 1, 2, 3].map((id) => kinds.lastIndexOf(id));

    // Frames are numbered in their order of beginning: 1 is the one for the other node.
    expect(kinds.filter((kind) => kind === 1)).toHaveLength(5);
    expect([first[2]! > last[0]!, first[3]! > last[2]!, first[1]! < last[0]!]).toEqual([
      true,
      true,
      true,
    ]);
    expect(kinds.indexOf('whole')).toBeLessThan(last[0]!);
  });

  it('[11] Sending goes on after a fragmented frame could not be sent', async () => {
    const { messenger, transport, packets } = messengerOf('sender');
    const { send } = transport;
    transport.send = async (to, packet) => {
      if (decodeFrame(packet, defaultWireLimits).header['id'] === 0) {
        throw new Error('no way');
      }
      await send(to, packet);
    };
    const failed = expect(messenger.send('one', reply(1 << 19))).rejects.toThrow('no way');
    await Promise.all([failed, messenger.send('one', reply(1 << 19))]);

    const kinds = packets.map((packet) => packet[4]);
    expect(kinds.filter((kind) => kind === Kind.fragment)).toHaveLength(3);
  });

  it('[11] Packets become smaller when the transport accepts no larger ones', async () => {
    const { messenger, transport, packets } = messengerOf('sender');
    await messenger.send('one', reply(1 << 17));
    transport.maxPacket = 1 << 16;
    await messenger.send('one', reply(1 << 17));

    expect(packets.map(({ byteLength }) => byteLength > 1 << 16)).toEqual([
      true,
      false,
      false,
      false,
    ]);
  });

  describe('with more messages than may be on their way', () => {
    const WINDOW = 1 << 20;
    it('[C1] The rest waits until marks come back, in order, and all of it is sent', async () => {
      const { messenger, packets, returnMarks } = messengerOf('sender', WINDOW);
      const calls = Array.from({ length: 64 }, (_, i) => i);
      const sent = Promise.all(
        calls.map(async (call) => messenger.send('one', reply(100_000, call))),
      );
      await turn();
      await turn();
      expect(dataOf(packets)).toHaveLength(Math.ceil(WINDOW / 100_000));

      await returnMarks(sent);

      expect(dataOf(packets).map(({ call }) => call)).toEqual(calls);
      expect(await sent).toHaveLength(64);
    });

    it('[C2] Heartbeats, credits, cancellations and marks do not wait', async () => {
      const { messenger, packets } = messengerOf('sender', WINDOW);
      const large = messenger.send('one', reply(8 * WINDOW));
      const small = Array.from({ length: 64 }, async () => messenger.send('one', reply(100_000)));
      await turn();
      await turn();
      const before = packets.length;

      await messenger.send('one', cancel);
      await messenger.send('one', { kind: Kind.credit, call: 1 });
      await messenger.broadcast({ kind: Kind.heartbeat });
      messenger.remind(() => true);
      messenger.remind(() => true);
      await turn();
      await turn();

      expect(kindsOf(packets).slice(before)).toEqual([
        Kind.cancel,
        Kind.credit,
        Kind.heartbeat,
        // It seems to be lost.
        Kind.mark,
      ]);
      messenger.drop('one');
      await Promise.allSettled([large, ...small]);
    });

    it('[C1] What waits for a node that is gone fails as not delivered', async () => {
      const { messenger, packets } = messengerOf('sender', WINDOW);
      const sent = [2 * WINDOW, ...Array.from({ length: 20 }, () => 100_000)].map(
        async (size, call) => messenger.send('one', reply(size, call)),
      );
      await turn();
      await turn();
      const before = packets.length;

      messenger.drop('one');
      const outcomes = await Promise.allSettled(sent);

      const failures = outcomes.filter(({ status }) => status === 'rejected');
      expect(failures.length).toBeGreaterThan(10);
      expect(failures).toMatchObject(
        failures.map(() => ({ reason: { name: 'NodeGoneError', address: 'one' } })),
      );
      expect(packets).toHaveLength(before);
    });

    it('[C1] A message whose call is over is not sent, and the rest of a large one is left out', async () => {
      const { messenger, packets, returnMarks } = messengerOf('sender', WINDOW);
      const receiver = messengerOf('one');
      const large = { isOver: false };
      const waiting = { isOver: false };
      const sent = Promise.all([
        messenger.send('one', { ...reply(4 * WINDOW, 1), of: large }),
        ...Array.from({ length: 20 }, () => messenger.send('one', reply(100_000, 2))),
        messenger.send('one', { ...reply(100_000, 3), of: waiting }),
        messenger.send('one', { ...reply(2 * WINDOW, 4), of: waiting }),
        messenger.send('one', reply(2 * WINDOW, 5)),
      ]);
      await turn();
      await turn();
      expect(large).toMatchObject({ hasLeft: true });
      large.isOver = true;
      waiting.isOver = true;
      await returnMarks(sent);

      packets.forEach((packet) => receiver.messenger.receive(packet));
      const calls = receiver.messages.filter(({ kind }) => kind === Kind.reply);
      expect(new Set(calls.map(({ call }) => call))).toEqual(new Set([2, 5]));
      expect(receiver.errors).toEqual([]);
      expect(waiting).not.toHaveProperty('hasLeft');
      expect((await sent).slice(-3, -1)).toEqual([0, 0]);
    });
  });
});

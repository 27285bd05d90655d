import { describe, expect, it } from '@jest/globals';
import { type Message, Messenger } from '../../../../lib/distribution/wire/messenger.js';
import type { ServingTransport } from '../../../../lib/distribution/transport.js';
import { defaultWireLimits } from '../../../../lib/distribution/wire/limits.js';
import { decodeFrame } from '../../../../lib/distribution/wire/frame.js';
import { type FrameError, Kind } from '../../../../lib/distribution/wire/prelude.js';
import { encodeValue } from '../../../../lib/distribution/wire/values.js';
import { turn } from '../../../fixtures/async/virtual-time.js';

/** A messenger whose packets are collected here. */
function messengerOf(address: string) {
  const packets: Uint8Array[] = [];
  const messages: Message[] = [];
  const errors: FrameError[] = [];
  const keep = (packet: Uint8Array): void => void packets.push(packet.slice());
  const transport = {
    maxPacket: 1 << 18,
    start: async () => {},
    send: async (_, packet) => {
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
  return { messenger, transport, packets, messages, errors };
}

const cancel = { kind: Kind.cancel, call: 1 };

const reply = (count: number, call = 0) => ({ kind: Kind.reply, call, value: bytes(count) });

const bytes = (count: number) => encodeValue(new Uint8Array(count), defaultWireLimits);

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
    const { messenger, packets } = messengerOf('sender');
    const large = ['one', 'one', 'other', 'one'].map((to, call) =>
      messenger.send(to, reply(1 << 19, call)),
    );
    await Promise.all([...large, messenger.send('one', reply(8, 4))]);

    const kinds = packets.map((packet) => {
      const { kind, header } = decodeFrame(packet, defaultWireLimits);
      return kind === Kind.fragment ? header['id'] : 'whole';
    });
    const first = [0, 1, 2, 3].map((id) => kinds.indexOf(id));
    const last = [0, 1, 2, 3].map((id) => kinds.lastIndexOf(id));

    // Frames are numbered in their order of beginning: 1 is the one for the other node.
    expect(kinds.filter((kind) => kind === 1)).toHaveLength(3);
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

    expect(packets).toHaveLength(3);
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
});

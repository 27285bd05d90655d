import { describe, expect, it } from '@jest/globals';
import { type Letter, Post } from '../../../lib/distribution/post.js';
import type { ServingTransport } from '../../../lib/distribution/transport.js';
import { defaultWireLimits } from '../../../lib/distribution/wire/limits.js';
import { type FrameError, Kind } from '../../../lib/distribution/wire/prelude.js';

/** A post whose packets go nowhere, and lie here. */
function postOf(address: string) {
  const packets: Uint8Array[] = [];
  const letters: Letter[] = [];
  const errors: FrameError[] = [];
  const keep = (packet: Uint8Array): void => void packets.push(packet.slice());
  const transport: ServingTransport = {
    maxPacket: 1 << 18,
    start: async () => {},
    send: (_, packet) => keep(packet),
    broadcast: keep,
    stop: async () => {},
  };
  const post = new Post({
    address,
    transport,
    limits: defaultWireLimits,
    secret: 'known to all of the nodes',
    read: (letter) => letters.push(letter),
    unreadable: (error) => errors.push(error),
  });
  return { post, packets, letters, errors };
}

describe('Post', () => {
  it('[11] reads what is for its own node, and not what was signed for another', async () => {
    const [sender, receiver, other] = [postOf('sender'), postOf('receiver'), postOf('other')];
    await sender.post.send('receiver', Kind.cancel, { call: 1 });
    const [packet] = sender.packets;

    other.post.hear(packet!.slice());
    receiver.post.hear(packet!.slice());

    expect(other.letters).toEqual([]);
    expect(other.errors).toMatchObject([{ message: 'A frame is for another node' }]);
    expect(receiver.letters).toMatchObject([{ kind: Kind.cancel, from: 'sender', header: { call: 1 } }]);
  });

  it('[11] takes from a broadcast what nodes say of themselves, and nothing of a call', async () => {
    const [sender, receiver] = [postOf('sender'), postOf('receiver')];
    await sender.post.broadcast(Kind.who, {});
    await sender.post.broadcast(Kind.cancel, { call: 1 });

    sender.packets.forEach((packet) => receiver.post.hear(packet));

    expect(receiver.letters).toMatchObject([{ kind: Kind.who }]);
    expect(receiver.errors).toMatchObject([{ message: 'A frame is for another node' }]);
  });
});

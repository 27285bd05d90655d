import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { describe, expect, it, jest } from '@jest/globals';
import { Logger } from '@nestjs/common';
import { VirtualTime } from 'nestjs-serving/testing';
import { firstValueFrom } from 'rxjs';
import { hmacOf } from '../../../lib/extensions/distribution/transports/handshake.js';
import { TcpTransport } from '../../../lib/extensions/distribution/transports/tcp/tcp.transport.js';
import { PRELUDE } from '../../../lib/extensions/distribution/wire/prelude.js';
import { InvalidServingError } from '../../../lib/core/errors.js';
import { recordWarnings } from '../../fixtures/recorded-warnings.js';
import { until } from '../../fixtures/async/awaited.js';
import {
  contextOf,
  numberedPacket,
  RecordingReceiver,
} from '../../fixtures/async/recording-receiver.js';
import { has, useTcpNodes } from '../../fixtures/cluster/tcp-nodes.js';

const { start, clientOf, connectTo, closing } = useTcpNodes();

describe('strangers', () => {
  it('[C6] A connection that breaks is logged in one line, without an exception', async () => {
    const warnings = recordWarnings();
    const errors: unknown[] = [];
    const logged = jest
      .spyOn(Logger.prototype, 'error')
      .mockImplementation((...message: unknown[]) => void errors.push(message));
    const node = await start('a');
    const socket = await connectTo(node);

    socket.write('x'.repeat(64));
    await once(socket, 'close');
    await until(() => warnings.length + errors.length > 0);
    logged.mockRestore();

    expect(errors).toEqual([]);
    expect(warnings).toEqual([
      'A connection to this node broke: The invalid received message from tcp server',
    ]);
  });

  it('[11] Without the secret there is no connection in either direction', async () => {
    const warnings = recordWarnings();
    const a = await start('a', { secret: 'one' });
    const peers = [{ host: '127.0.0.1', port: a.transport.port! }];
    const strangers = await Promise.all([
      start('b', { secret: 'another', peers }),
      start('c', { peers }),
    ]);
    await until(() => warnings.length === 2);
    const friend = await start('d', { secret: 'one', peers });
    await friend.recorded.until(has('found a'));
    friend.transport.send('a', numberedPacket(1));
    await a.recorded.until(({ packets }) => packets.length === 1);

    expect(warnings).toEqual(
      Array(2).fill(expect.stringContaining('Its secret is not that of this node')),
    );
    expect(a.recorded.events).toEqual(['found d']);
    expect(strangers.map(({ recorded }) => recorded.events)).toEqual([[], []]);
  });

  it('[11] A node of another namespace gets no connection and the reason', async () => {
    const warnings = recordWarnings();
    const a = await start('a');
    const stranger = new TcpTransport({ peers: [{ host: '127.0.0.1', port: a.transport.port! }] });
    closing.push(() => stranger.stop());
    await stranger.start(contextOf('b', new RecordingReceiver(), { namespace: 'another' }));
    await until(() => warnings.length > 0);

    expect(warnings).toEqual([expect.stringContaining('No node of namespace "another" is there')]);
    expect(a.recorded.events).toEqual([]);
  });

  it('[11] A recorded handshake cannot be replayed', async () => {
    const a = await start('a', { secret: 'one' });
    const client = clientOf(a);
    const { nonce } = await firstValueFrom(
      client.send<{ nonce: string }>('sv.test.who', { nonce: 'mine' }),
    );
    const proof = hmacOf('one', 'link', 'test', 'mine', nonce, 'b');
    const replay = clientOf(a);
    await firstValueFrom(replay.send('sv.test.who', { nonce: 'mine' }));

    await expect(
      firstValueFrom(replay.send('sv.test.link', { address: 'b', proof })),
    ).rejects.toMatchObject({
      message: "The node's secret differs from ours",
    });
    await expect(
      firstValueFrom(client.send('sv.test.link', { address: 'b', proof })),
    ).resolves.toBe(true);
    await expect(
      firstValueFrom(client.send('sv.test.link', { address: 'b', proof })),
    ).rejects.toMatchObject({ statusCode: 400 });
    expect(a.recorded.events).toEqual(['found b']);
  });

  it.each([{ address: 'a.b' }, { address: 7 }, {}, 'text', [1]])(
    '[11] The proposal %j for a connection is refused',
    async (proposal) => {
      const a = await start('a');
      const client = clientOf(a);

      await expect(firstValueFrom(client.send('sv.test.link', proposal))).rejects.toMatchObject({
        code: 'SERVING_INVALID_INPUT',
      });
      await expect(firstValueFrom(client.send('sv.test.who', proposal))).rejects.toMatchObject({
        code: 'SERVING_INVALID_INPUT',
      });
      await firstValueFrom(client.send('sv.test.who', { nonce: '1' }));
      await expect(firstValueFrom(client.send('sv.test.link', proposal))).rejects.toMatchObject({
        code: 'SERVING_INVALID_INPUT',
      });
      expect(a.recorded.events).toEqual([]);
    },
  );

  it('[11] Listening beyond this machine without protection is refused', async () => {
    const options = { host: '0.0.0.0' };

    await expect(start('a', { options })).rejects.toThrow(InvalidServingError);
    const node = await start('a', { options, insecure: true });
    expect(node.transport.port).toBeGreaterThan(0);
  });

  it.each([
    ['nothing', () => {}, 'It has not answered within 5000 ms'],
    ['nonsense', (socket: Socket) => socket.write('banana#'), 'Corrupted length value'],
    [
      'bytes that are no packet',
      (socket: Socket) => socket.write(Buffer.alloc(PRELUDE)),
      'A packet on a connection that is no link',
    ],
    ['an end', (socket: Socket) => socket.end(), 'Connection closed'],
  ])(
    '[11] A peer that answers with %s is dialled again, with one warning',
    async (_, answer, reason) => {
      const warnings = recordWarnings();
      let dialled = 0;
      const server = createServer((socket) => {
        dialled++;
        answer(socket.on('error', () => {}).resume());
      });
      await once(server.listen(0, '127.0.0.1'), 'listening');
      closing.push(() => server.close());
      const time = await VirtualTime.install();
      try {
        const a = await start('a', {
          peers: [{ host: '127.0.0.1', port: (server.address() as AddressInfo).port }],
        });
        await time.advance(30_000);
        expect(dialled).toBeGreaterThan(2);
        await a.transport.stop();
        const before = dialled;
        await time.advance(60_000);

        expect(warnings).toEqual([
          expect.stringMatching(
            /^There is no connection to the node at 127\.0\.0\.1:\d+; it is retried without end\./,
          ),
        ]);
        expect(warnings[0]).toContain(reason);
        expect(dialled).toBe(before);
        expect(time.timers).toBe(0);
      } finally {
        time.restore();
      }
    },
  );

  it('[11] A port that is taken fails at boot', async () => {
    const a = await start('a');

    await expect(start('b', { options: { port: a.transport.port! } })).rejects.toThrow(
      'EADDRINUSE',
    );
  });
});

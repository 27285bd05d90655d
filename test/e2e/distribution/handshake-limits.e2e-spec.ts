import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { setImmediate as turn } from 'node:timers/promises';
import { afterEach, describe, expect, it } from '@jest/globals';
import { ClientGrpcProxy } from '@nestjs/microservices';
import { VirtualTime } from 'nestjs-serving/testing';
import { firstValueFrom } from 'rxjs';
import {
  type GrpcCall,
  service,
} from '../../../lib/extensions/distribution/transports/grpc/grpc-connection.js';
import { GrpcTransport } from '../../../lib/extensions/distribution/transports/grpc/grpc.transport.js';
import { until } from '../../fixtures/async/awaited.js';
import { describeWithCertificate } from '../../fixtures/cluster/certificates.js';
import {
  contextOf,
  numberedPacket,
  RecordingReceiver,
} from '../../fixtures/async/recording-receiver.js';
import { has, useTcpNodes } from '../../fixtures/cluster/tcp-nodes.js';

const { start, clientOf, connectTo, closing } = useTcpNodes();
const secret = 'known to nodes alone';
const peersOf = ({ transport }: { readonly transport: { readonly port: number | undefined } }) => [
  { host: '127.0.0.1', port: transport.port! },
];

let time: VirtualTime | undefined;
afterEach(async () => {
  time?.restore();
  // Connections that are closing finish before another test stops the time.
  await turn();
});

/**
 * Writes 100 MiB or until the connection closes, and returns the number of bytes that left this
 * process.
 */
async function flood(socket: Socket, beginning: string): Promise<number> {
  socket.on('error', () => {}).write(beginning);
  const piece = Buffer.alloc(2 ** 20, 'a');
  while (!socket.destroyed && socket.bytesWritten < 100 * 2 ** 20) {
    if (!socket.write(piece)) {
      await new Promise<unknown>((resolve) => socket.once('drain', resolve).once('close', resolve));
    }
  }
  const left = socket.bytesWritten - socket.writableLength;
  socket.destroy();
  return left;
}

describe('A stranger at the TCP port of a node with a secret', () => {
  it.each([
    ['one message', '120000000#'],
    ['digits', '9'],
    ['messages', '10#0123456789'.repeat(2000)],
  ])(
    '[L7] A stranger that sends more than a handshake in %s is disconnected',
    async (_, beginning) => {
      const node = await start('a', { secret });

      // The rest stays in buffers of the operating system.
      expect(await flood(await connectTo(node), beginning)).toBeLessThan(16 * 2 ** 20);
    },
  );

  it.each([
    ['sends nothing', ''],
    ['sends a part of a message', '100#{"pattern"'],
    ['asks for the node and proposes no connection', question('sv.test.who', { nonce: '1' })],
  ])('[L7] A stranger that %s is disconnected after 10 seconds', async (_, text) => {
    time = await VirtualTime.install();
    const node = await start('a', { secret });
    const stranger = await connectTo(node);
    stranger.write(text);
    await time.advance(9_900);
    expect(stranger.closed).toBe(false);

    const closed = once(stranger, 'close');
    await time.advance(100);

    await closed;
    expect(time.timers).toBe(0);
  });

  it('[L7] Connections of nodes last and carry large packets', async () => {
    time = await VirtualTime.install();
    const a = await start('a', { secret });
    const b = await start('b', { secret, peers: peersOf(a) });
    await Promise.all([a.recorded.until(has('found b')), b.recorded.until(has('found a'))]);
    await time.advance(60_000);
    for (let i = 0; i < 5; i++) {
      b.transport.send('a', numberedPacket(i, b.transport.maxPacket));
    }
    await a.recorded.until(({ packets }) => packets.length === 5);

    expect(a.recorded.events).toEqual(['found b']);
    expect(b.recorded.events).toEqual(['found a']);
  });
});

describe('A connection to the TCP port of a node without a secret', () => {
  it('[L7] The connection of an idle client of Nest stays open, and its messages may be large', async () => {
    time = await VirtualTime.install();
    const node = await start('a', {}, new Map([['length', async (data) => String(data).length]]));
    const client = clientOf(node);
    await client.connect();
    await time.advance(60_000);

    expect(await firstValueFrom(client.send('sv.test.s.length', 'a'.repeat(2 ** 20)))).toBe(
      2 ** 20,
    );
    await time.advance(60_000);
    expect(await firstValueFrom(client.send('sv.test.s.length', 'a'))).toBe(1);
  });

  it('[L7] A connection that does not finish its handshake within 10 seconds is closed', async () => {
    time = await VirtualTime.install();
    const node = await start('a');
    const stranger = await connectTo(node);
    stranger.write(question('sv.test.who', { nonce: '1' }).repeat(20));
    await once(stranger, 'data');

    const closed = once(stranger, 'close');
    await time.advance(10_000);

    await closed;
    expect(time.timers).toBe(0);
  });
});

describe('A stranger that a node dials', () => {
  it('[L7] A dialled stranger that answers with more than a handshake is disconnected', async () => {
    const written = new Promise<number>((resolve) => {
      const server = createServer((socket) => {
        server.close();
        void flood(socket.resume(), '120000000#').then(resolve);
      });
      server.listen(0, '127.0.0.1', () => {
        const { port } = server.address() as AddressInfo;
        void start('a', { peers: [{ host: '127.0.0.1', port }] });
      });
    });

    expect(await written).toBeLessThan(16 * 2 ** 20);
  });
});

async function startGrpc(): Promise<GrpcTransport> {
  const transport = new GrpcTransport({ options: { url: '127.0.0.1:0' }, secret });
  closing.push(() => transport.stop());
  await transport.start(contextOf('a', new RecordingReceiver()));
  return transport;
}

function clientTo({ port }: GrpcTransport): { Link(): GrpcCall } {
  const client = new ClientGrpcProxy({
    ...service,
    url: `127.0.0.1:${port}`,
    channelOptions: { 'grpc.use_local_subchannel_pool': 1 },
  });
  closing.push(() => client.close());
  return client.getClientByServiceName('Nodes');
}

describe('A stranger at the gRPC port of a node', () => {
  it.each(['connects and sends nothing', 'speaks HTTP/2 and opens no call'])(
    '[L7] A stranger that %s is disconnected after 10 seconds',
    async (what) => {
      const transport = await startGrpc();
      time = await VirtualTime.install();
      const socket = connect(transport.port!, '127.0.0.1').on('error', () => {});
      closing.push(() => socket.destroy());
      await once(socket, 'connect');
      if (what.startsWith('speaks')) {
        // The preface of HTTP/2 and empty settings.
        socket.write('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0', 'latin1');
        await once(socket, 'data');
      }
      await until(() => time!.timers > 0);
      socket.resume();
      await time.advance(9_900);
      expect(socket.closed).toBe(false);

      const closed = once(socket, 'close');
      await time.advance(100);

      await closed;
    },
  );

  it('[L7] A stranger that sends more text than a handshake is disconnected', async () => {
    const call = clientTo(await startGrpc()).Link();
    const who = JSON.stringify({ pattern: 'sv.test.who', data: { nonce: '1' } });
    const failed = once(call, 'error');
    for (let i = 0; i < 1000 && !call.destroyed; i++) {
      call.write({ text: who });
    }

    expect(String(await failed)).not.toBe('');
    const answer = clientTo(await startGrpc()).Link();
    const refused = once(answer, 'error');
    answer.write({
      text: JSON.stringify({ pattern: 'sv.test.who', data: { nonce: 'a'.repeat(20_000) } }),
    });
    expect(String(await refused)).toMatch(/INVALID_ARGUMENT: More than 16384 characters of text/);
  });

  it('[L7] A stranger has one gRPC call at a time', async () => {
    const client = clientTo(await startGrpc());
    const first = client.Link();
    first.write({ text: JSON.stringify({ pattern: 'sv.test.who', data: { nonce: '1' } }) });
    await once(first, 'data');
    let answers = 0;
    const others = Array.from({ length: 5 }, () => client.Link());
    for (const other of others) {
      other.on('error', () => {}).on('data', () => answers++);
      other.write({ text: JSON.stringify({ pattern: 'sv.test.who', data: { nonce: '1' } }) });
    }
    for (let i = 0; i < 50; i++) {
      first.write({ text: JSON.stringify({ pattern: 'sv.test.who', data: { nonce: '1' } }) });
      await once(first, 'data');
    }

    [first, ...others].forEach((call) => call.on('error', () => {}).cancel?.());

    expect(answers).toBe(0);
  });
});

describeWithCertificate('A stranger at the TCP port of a node with certificates', (certificate) => {
  it('[L7] A stranger that does not begin TLS is disconnected after 10 seconds', async () => {
    const node = await start('a', {
      options: { tlsOptions: { ...certificate, requestCert: true } },
    });
    const began = performance.now();
    await once(await connectTo(node), 'close');

    expect(performance.now() - began).toBeGreaterThan(9_000);
  });
});

function question(pattern: string, data: object): string {
  const text = JSON.stringify({ pattern, data, id: '1' });
  return `${text.length}#${text}`;
}

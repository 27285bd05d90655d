import { once } from 'node:events';
import { connect } from 'node:net';
import { setImmediate as turn } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { Logger } from '@nestjs/common';
import { ClientGrpcProxy } from '@nestjs/microservices';
import { VirtualTime } from 'nestjs-serving/testing';
import type { Address } from '../../../lib/extensions/distribution/transport.js';
import type {
  GrpcCall,
  GrpcMessage,
} from '../../../lib/extensions/distribution/transports/grpc/grpc-connection.js';
import {
  GrpcTransport,
  type GrpcTransportSettings,
} from '../../../lib/extensions/distribution/transports/grpc/grpc.transport.js';
import { InvalidServingError } from '../../../lib/core/errors.js';
import { recordWarnings } from '../../fixtures/recorded-warnings.js';
import { type AppProcess, useAppProcesses } from '../../fixtures/http/app-process.js';
import { until } from '../../fixtures/async/awaited.js';
import { useBreakableLinks } from '../../fixtures/cluster/breakable-link.js';
import { describeWithCertificate } from '../../fixtures/cluster/certificates.js';
import {
  expectEndAt128MiB,
  expectStopAfter5Seconds,
  sendMany,
  sendUntilGone,
  testDialling,
} from '../../fixtures/cluster/dialling-nodes.js';
import {
  describeTransport,
  type Joined,
  useNodes,
} from '../../fixtures/cluster/every-transport.js';
import {
  contextOf,
  numberedPacket,
  RecordingReceiver,
} from '../../fixtures/async/recording-receiver.js';
import { has } from '../../fixtures/cluster/tcp-nodes.js';

const startProcess = useAppProcesses();
const breakable = useBreakableLinks();
const transports: GrpcTransport[] = [];

beforeEach(() => Logger.overrideLogger(false));

afterEach(async () => {
  await Promise.all(transports.splice(0).map((transport) => transport.stop()));
});

/** A node that listens on a local port. */
async function start(
  address: Address,
  { options, ...settings }: GrpcTransportSettings = {},
): Promise<Joined<GrpcTransport>> {
  const recorded = new RecordingReceiver();
  const transport = new GrpcTransport({ ...settings, options: { url: '127.0.0.1:0', ...options } });
  transports.push(transport);
  await transport.start(contextOf(address, recorded));
  return { transport, recorded };
}

/** The address for peers. */
function urlOf({ transport }: Joined<GrpcTransport>): string {
  return `127.0.0.1:${transport.port}`;
}

/** Starts a process with a node, at a port if given. */
function startNode(address: string, port = 0): AppProcess {
  const settings = { options: { url: `127.0.0.1:${port}` } };
  return startProcess('node', { transport: 'grpc', settings, address });
}

/** Starts a process with a node that is connected with this one, as dialling or dialled side. */
async function startLinked(
  way: string,
): Promise<readonly [here: Joined<GrpcTransport>, there: AppProcess]> {
  const own = way === 'dials' ? undefined : await start('a');
  const settings = { options: { url: '127.0.0.1:0' }, peers: own ? [urlOf(own)] : [] };
  const there = startProcess('node', { transport: 'grpc', settings, address: 'b' });
  const [port] = await there.messages<number>('started');
  const here = own ?? (await start('a', { peers: [`127.0.0.1:${port}`] }));
  await here.recorded.until(has('found b'));
  return [here, there];
}

/** Each node dials all earlier ones. */
const join = useNodes<GrpcTransport>(
  (others) =>
    new GrpcTransport({
      options: { url: '127.0.0.1:0' },
      peers: others.flatMap(({ port }) => (port ? [{ host: '127.0.0.1', port }] : [])),
    }),
);

describeTransport({ name: 'gRPC', connections: true, join });

describe('connections', () => {
  testDialling({ start, startProcess: startNode });

  it.each(['dials', 'is dialled'])(
    '[11] Sending waits for a slow node and goes on when it reads again; the node %s',
    async (who) => {
      const [a, slow] = await startLinked(who);
      slow.kill('SIGSTOP');
      const sent = sendMany(a);
      const events: string[] = [];
      const room = Promise.all(sent.map(async (each) => each)).then(() => events.push('room'));
      await turn();
      events.push('goes on');

      slow.kill('SIGCONT');
      await room;
      const recorded = await slow.messages<number>('received', sent.length);

      expect(sent[0]).toBe(undefined);
      expect(sent.at(-1)).toBeInstanceOf(Promise);
      expect(events).toEqual(['goes on', 'room']);
      expect(recorded).toEqual(Array.from(sent.keys()));
    },
  );

  it.each(['dials', 'is dialled'])(
    '[11] Waiting senders are released when the connection ends; the node %s',
    async (who) => {
      const [a, killed] = await startLinked(who);
      killed.kill('SIGSTOP');
      const sent = sendMany(a);

      killed.kill('SIGKILL');
      await Promise.all(sent.map(async (each) => each));
      await a.recorded.until(has('gone b'));

      expect(() => a.transport.send('b', numberedPacket(2))).toThrow('There is no node b');
    },
  );

  it.each(['dials', 'is dialled'])(
    '[11] The connection to a node that does not read ends when 128 MiB wait; the node %s',
    async (who) => {
      const [a, stopped] = await startLinked(who);

      stopped.kill('SIGSTOP');

      await expectEndAt128MiB(a);
      stopped.kill('SIGKILL');
    },
  );

  it('[11] The connection to a node that does not read leaves nothing when it ends', async () => {
    const a = await start('a');
    const way = await breakable(a.transport.port!);
    const settings = { options: { url: '127.0.0.1:0' }, peers: [`127.0.0.1:${way.port}`] };
    const stopped = startProcess('node', { transport: 'grpc', settings, address: 'b' });
    await a.recorded.until(has('found b'));

    stopped.kill('SIGSTOP');
    await sendUntilGone(a);
    await until(() => way.open === 0);

    expect(way.made).toBe(1);
  });

  it.each(['dials', 'is dialled'])(
    '[C2] Megabytes are on their way before a word of the receiver is back; the sender %s',
    async (who) => {
      const dialled = await start('dialled');
      const way = await breakable(dialled.transport.port!);
      const dialling = await start('dialling', { peers: [`127.0.0.1:${way.port}`] });
      await dialling.recorded.until(has('found dialled'));
      await dialled.recorded.until(has('found dialling'));
      const [sender, receiver] =
        who === 'dials' ? [dialling.transport, dialled] : [dialled.transport, dialling];
      way.silence(who === 'dials' ? 'far' : 'near');

      for (let number = 0; number < 8; number++) {
        void sender.send(who === 'dials' ? 'dialled' : 'dialling', numberedPacket(number, 2 ** 20));
      }
      await receiver.recorded.until(({ packets }) => packets.length === 8);

      expect(receiver.recorded.numbers).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
    },
  );

  it.each(['dials', 'is dialled'])(
    '[11] A node that does not read delays stopping by 5 seconds; the node %s',
    async (who) => {
      const time = await VirtualTime.install();
      try {
        const [a, stopped] = await startLinked(who);
        stopped.kill('SIGSTOP');
        await expectStopAfter5Seconds(a, time);
      } finally {
        time.restore();
      }
    },
  );
});

describe('strangers', () => {
  const clients: ClientGrpcProxy[] = [];

  afterEach(() => clients.splice(0).forEach((client) => client.close()));

  /** A call without a handshake. */
  function callTo(node: Joined<GrpcTransport>): GrpcCall {
    const protoPath = fileURLToPath(
      new URL('../../../lib/extensions/distribution/transports/grpc/link.proto', import.meta.url),
    );
    const client = new ClientGrpcProxy({ url: urlOf(node), package: 'nestjs_serving', protoPath });
    clients.push(client);
    return client.getClientByServiceName<{ Link(): GrpcCall }>('Nodes').Link();
  }

  it('[11] Without the secret there is no connection in either direction', async () => {
    const warnings = recordWarnings();
    const a = await start('a', { secret: 'one' });
    const peers = [urlOf(a)];
    const strangers = await Promise.all([
      start('b', { secret: 'another', peers }),
      start('c', { peers }),
    ]);
    await until(() => warnings.length === 2);
    const friend = await start('d', { secret: 'one', peers });
    await friend.recorded.until(has('found a'));
    void friend.transport.send('a', numberedPacket(1));
    await a.recorded.until(({ packets }) => packets.length === 1);

    expect(warnings).toEqual(
      Array(2).fill(expect.stringContaining('Its secret is not that of this node')),
    );
    expect(a.recorded.events).toEqual(['found d']);
    expect(strangers.map(({ recorded }) => recorded.events)).toEqual([[], []]);
  });

  it.each<[string, GrpcMessage, RegExp]>([
    [
      'a packet on a connection that is no link',
      { frame: numberedPacket(1) },
      /INVALID_ARGUMENT: A packet on a connection that is no link/,
    ],
    ['a text that is no JSON', { text: 'hello' }, /INVALID_ARGUMENT: Unexpected token/],
    ['nothing', { text: 'null' }, /INVALID_ARGUMENT: Nobody answers undefined here/],
    [
      'a question of another namespace',
      { text: '{"pattern":"sv.other.who","data":{"nonce":"1"}}' },
      /Nobody answers "sv.other.who" here; is this node of another namespace\?/,
    ],
    [
      'a proposal before its hello',
      { text: '{"pattern":"sv.test.link","data":{"address":"b"}}' },
      /proposed by a node that has introduced itself/,
    ],
    [
      'a message that is larger than a packet',
      { frame: numberedPacket(1, 1_100_000) },
      /RESOURCE_EXHAUSTED/,
    ],
  ])(
    '[11] A peer that sends %s is disconnected, and no other peer is',
    async (_, message, reason) => {
      const node = await start('a');
      const call = callTo(node);
      call.write(message);
      const [error]: unknown[] = await once(call, 'error');

      expect(String(error)).toMatch(reason);
      const friend = await start('b', { peers: [urlOf(node)] });
      await friend.recorded.until(has('found a'));
      expect(node.recorded.packets).toEqual([]);
    },
  );

  it('[11] A silent connection does not delay stopping', async () => {
    const node = await start('a');
    const socket = connect(node.transport.port!, '127.0.0.1').on('error', () => {});
    const closed = once(socket, 'close');
    await once(socket, 'connect');

    await node.transport.stop();

    await closed;
  });

  it('[11] A connection that does not speak HTTP/2 affects no other', async () => {
    const node = await start('a');
    const socket = connect(node.transport.port!, '127.0.0.1');
    socket.end('GET / HTTP/1.1\r\n\r\n').resume();
    await once(socket, 'close');
    const friend = await start('b', { peers: [urlOf(node)] });

    await friend.recorded.until(has('found a'));
  });

  it('[11] Listening beyond this machine without protection is refused', async () => {
    const options = { url: '0.0.0.0:0' };

    await expect(start('a', { options })).rejects.toThrow(InvalidServingError);
    await start('a', { options, insecure: true });
    await expect(start('b', { options: { url: 'example.org:1', tlsOptions: {} } })).rejects.toThrow(
      /listens on example\.org can/,
    );
  });

  it('[11] A port that is taken fails at boot', async () => {
    const a = await start('a');

    await expect(start('b', { options: { url: urlOf(a) } })).rejects.toThrow('EADDRINUSE');
  });

  it.each(['5000', 'unix:/tmp/socket', 'localhost:65536', 'localhost'])(
    '[11] The address %s is refused for listening',
    async (url) => {
      await expect(start('a', { options: { url } })).rejects.toThrow(InvalidServingError);
    },
  );
});

describeWithCertificate('nodes with certificates', (certificate) => {
  const tls = { ...certificate, requestCert: true };

  it('[11] Nodes with certificates connect on a public port', async () => {
    const a = await start('a', { options: { url: '0.0.0.0:0', tlsOptions: tls } });
    const b = await start('b', {
      options: { tlsOptions: tls },
      peers: [`localhost:${a.transport.port}`],
    });
    await Promise.all([a.recorded.until(has('found b')), b.recorded.until(has('found a'))]);
    const packet = numberedPacket(1, a.transport.maxPacket);
    void a.transport.send('b', packet);
    await b.recorded.until(({ packets }) => packets.length === 1);

    expect(Buffer.compare(b.recorded.packets[0]!, packet)).toBe(0);
  });

  it('[11] The server name of a connection is the one that the certificates are for', async () => {
    const options = { tlsOptions: { ...tls, servername: 'localhost' } };
    const a = await start('a', { options });
    const names: string[] = [];
    const checkServerIdentity = (name: string): undefined => void names.push(name);
    const b = await start('b', {
      options: { tlsOptions: { ...options.tlsOptions, checkServerIdentity } },
      peers: [urlOf(a)],
    });
    await b.recorded.until(has('found a'));

    expect(names).toEqual(['localhost']);
  });

  it.each([
    ['no certificate', { ca: certificate.ca }],
    ['no encryption', undefined],
  ])('[11] A peer with %s is refused', async (_, tlsOptions) => {
    const warnings = recordWarnings();
    const a = await start('a', { options: { tlsOptions: tls } });
    const stranger = new GrpcTransport({
      options: { ...(tlsOptions && { tlsOptions }) },
      peers: [`localhost:${a.transport.port}`],
    });
    transports.push(stranger);
    const recorded = new RecordingReceiver();
    await stranger.start(contextOf('b', recorded, { role: 'client' }));
    await until(() => warnings.length > 0);

    expect(warnings).toEqual([expect.stringContaining('UNAVAILABLE')]);
    expect([a.recorded.events, recorded.events]).toEqual([[], []]);
  });
});

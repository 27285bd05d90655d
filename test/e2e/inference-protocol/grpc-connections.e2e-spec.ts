import { once } from 'node:events';
import { connect } from 'node:net';
import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { type INestApplication, Logger } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { ServingModule } from 'nestjs-serving';
import { InferenceProtocolModule } from 'nestjs-serving/inference-protocol';
import type { GrpcDoorOptions } from 'nestjs-serving/inference-protocol';
import { GrpcDoor } from '../../../lib/extensions/inference-protocol/server/grpc/grpc-door.js';
import { describeWithCertificate } from '../../fixtures/cluster/certificates.js';
import { until } from '../../fixtures/async/awaited.js';
import { DATA, GOAWAY, PING, RawHttp2 } from '../../fixtures/http/raw-http2.js';

const LIVE = '/inference.GRPCInferenceService/ServerLive';
const STREAM = '/inference.GRPCInferenceService/ModelStreamInfer';
const INFER = '/inference.GRPCInferenceService/ModelInfer';

function sockets(): number {
  return process.getActiveResourcesInfo().filter((name) => name === 'TCPSocketWrap').length;
}

describe('Connections of the gRPC door', () => {
  const clients: RawHttp2[] = [];
  let app: INestApplication | undefined;

  beforeEach(() => Logger.overrideLogger(false));
  afterEach(async () => {
    clients.splice(0).forEach(({ socket }) => socket.destroy());
    await app?.close();
    app = undefined;
  });

  const open = async (options: Partial<GrpcDoorOptions> = {}): Promise<number> => {
    const servings = [
      {
        name: 'wide',
        model: { useFactory: () => (rows: number[]) => rows.map((n) => 'x'.repeat(n)) },
        shutdown: { timeout: 500 },
      },
    ];
    const grpc = { port: 0, host: '127.0.0.1', ...options };
    const module = await Test.createTestingModule({
      imports: [ServingModule.forRoot({ servings }), InferenceProtocolModule.forRoot({ grpc })],
    }).compile();
    app = module.createNestApplication();
    await app.init();
    return app.get(GrpcDoor).port!;
  };
  const connectTo = async (port: number): Promise<RawHttp2> => {
    const client = await RawHttp2.connect(port);
    clients.push(client);
    return client;
  };
  it('[FD1] The application ends though clients are connected that send nothing, answer nothing, or do not read their answers', async () => {
    const port = await open();
    const silent = connect({ port, host: '127.0.0.1', allowHalfOpen: true }).resume();
    silent.on('error', () => {});
    await once(silent, 'connect');
    const [frozen, asking, slow] = [
      await connectTo(port),
      await connectTo(port),
      await connectTo(port),
    ];
    frozen.call(1, LIVE);
    await frozen.next(DATA);
    asking.call(1, STREAM);
    // A row in JSON: 8 million letters, for which the window has no room.
    const text = Buffer.from('8000000');
    const contents = Buffer.concat([Buffer.from([0x42, text.length]), text]);
    const input = Buffer.concat([
      Buffer.from([0x0a, 5]),
      Buffer.from('input'),
      Buffer.from([0x12, 5]),
      Buffer.from('BYTES'),
      Buffer.from([0x1a, 1, 1, 0x2a, contents.length]),
      contents,
    ]);
    slow.call(
      1,
      INFER,
      Buffer.concat([
        Buffer.from([0x0a, 4]),
        Buffer.from('wide'),
        Buffer.from([0x2a, input.length]),
        input,
      ]),
    );
    await slow.next(DATA);

    await app!.close();

    app = undefined;
    await until(() => silent.destroyed || silent.readableEnded);
    await until(() => clients.every(({ socket }) => socket.readableEnded || socket.destroyed));
    silent.destroy();
  });

  it('[FD1] The descriptors of clients that are silent or answer no ping are freed while the application runs', async () => {
    const port = await open({ idleTimeout: 50 });
    const silent = connect({ port, host: '127.0.0.1', allowHalfOpen: true }).resume();
    silent.on('error', () => {});
    await once(silent, 'connect');
    const client = await connectTo(port);
    client.call(1, LIVE);
    await client.next(DATA);

    // The server's ends; the clients keep theirs half open.
    const before = sockets();
    await until(() => sockets() <= before - 2);
    silent.destroy();
  });

  it('[FD2] A client that answers pings keeps its idle connection, so that no call is lost that begins when the idle limit ends', async () => {
    const port = await open({ idleTimeout: 50 });
    const client = await connectTo(port);
    for (let stream = 1; stream < 8; stream += 2) {
      const seen = client.frames.length;
      const ping = await client.next(PING, seen);
      client.call(stream, LIVE);
      client.answer(ping);
      expect((await client.next(DATA, seen)).stream).toBe(stream);
    }
    expect(client.frames.filter(({ type }) => type === GOAWAY)).toEqual([]);
  });

  it('[FD2] A client that answers no ping gets GOAWAY before its connection ends', async () => {
    const port = await open({ idleTimeout: 50 });
    const client = await connectTo(port);
    client.call(1, LIVE);
    const last = await client.next(GOAWAY);
    expect(last.payload.readUInt32BE(0)).toBe(1);
    await until(() => client.socket.readableEnded);
  });

  describeWithCertificate('with TLS', ({ ca, cert, key }) => {
    it('[FD1] The application ends though a client has connected by TCP and begun no handshake of TLS', async () => {
      const port = await open({ tls: { ca, cert, key } });
      const silent = connect({ port, host: '127.0.0.1' }).on('error', () => {});
      await once(silent, 'connect');
      await app!.close();
      app = undefined;
      await until(() => silent.destroyed);
    });
  });
});

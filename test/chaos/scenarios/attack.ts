import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import { connect, createServer, type Socket } from 'node:net';
import { setTimeout as pause } from 'node:timers/promises';
import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { Transport } from '@nestjs/microservices';
import {
  defineServing,
  isServingError,
  ServingModule,
  ServingService,
  Tensor,
} from 'nestjs-serving';
import { endpoint } from 'nestjs-serving/inference-protocol';
import { ServingClusterModule } from 'nestjs-serving/distribution';
import type { Call, MakeCall } from '../client/calls.js';
import type { Scenario } from '../scenario.js';
import type { Doors } from '../server/options.js';
import type { Stage } from '../stage.js';

/** The most open files of the application, and of attackers' connections among them. */
const FILES = 256;
const MOST_ATTACKERS = 120;

/** New attackers of a round. */
const ATTACKERS = 12;

const HOST = '127.0.0.1';

export const attack: Scenario = {
  name: 'attack',
  title: 'attackers at the ports of HTTP, gRPC and the cluster',
  async play(stage) {
    const doors = {
      grpc: await freePort(),
      cluster: await freePort(),
      secret: 'of this cluster alone',
    };
    const app = await stage.start({ doors, squares: {} });
    const isLimited = app.limitFiles(FILES);
    const client = await Client.open(doors);
    const load = await stage.load(
      app,
      Array.from({ length: 4 }, () => squareByProtocol),
    );
    client.keepCalling();
    await client.answered(4);
    const { files: before } = await app.admin();

    const ports = { http: Number(new URL(app.url).port), ...doors };
    const attackers = new Attackers(stage, ports);
    for await (const _ of stage.rounds(app, load)) {
      attackers.add(ATTACKERS);
      await client.answered(2);
    }
    const { failures, lost, wrong, answers } = await load.end();
    await client.end();
    attackers.end();
    const { files: after } = await app.until(({ files }) => files <= before);

    const refused = [...failures].filter(([code]) => code !== '503');
    stage.check('calls by HTTP are answered, or refused with 503', refused.length === 0, refused);
    stage.check('no call by HTTP is left without an answer', lost === 0, lost);
    stage.check(
      'calls by gRPC and by the cluster are answered, or refused with 503',
      client.faults.length === 0,
      client.faults.slice(0, 10),
    );
    stage.check('nobody gets the answer of somebody else', wrong === 0, wrong);
    stage.note(
      `${attackers.made} attackers, ${attackers.most} at a time; answered calls: ${answers} by HTTP, ` +
        `${[...client.answers].map(([by, count]) => `${count} by ${by}`).join(', ')}; open files: ` +
        `${before} before, ${after} after${isLimited ? '' : ', without a limit (prlimit is missing)'}`,
    );
  },
};

let nextId = 1;

/** The row is an element of type BYTES in JSON, and so is its square. */
const squareByProtocol: MakeCall = (): Call => {
  const id = nextId++;
  const data = [JSON.stringify({ id })];
  return {
    path: '/v2/models/squares/infer',
    content: { inputs: [{ name: 'input', datatype: 'BYTES', shape: [1], data }] },
    isOwn: (answer) =>
      (answer as { outputs: { data: unknown[] }[] }).outputs[0]?.data[0] === `${id ** 2}`,
  };
};

/** Another application, which calls by gRPC and by the cluster. */
class Client {
  readonly faults: string[] = [];
  readonly answers = new Map<string, number>();
  private readonly waiting = new Set<() => void>();
  private clients: readonly Promise<void>[] = [];
  private isOver = false;

  private constructor(
    private readonly servings: ServingService,
    private readonly close: () => Promise<void>,
  ) {}

  static async open({ grpc, cluster, secret }: Doors): Promise<Client> {
    @Module({
      imports: [
        ServingModule.forRoot({
          servings: [
            defineServing({
              name: 'by gRPC',
              model: endpoint(`grpc://${HOST}:${grpc}`, 'squares'),
              preprocess: (id: number) => ({
                batch: { input: new Tensor('string', [JSON.stringify({ id })], [1]) },
              }),
              postprocess: ({ output }: { output: Tensor }) => Number(output.data[0]),
            }),
          ],
        }),
        ServingClusterModule.forRoot({
          transport: Transport.TCP,
          role: 'client',
          peers: [`${HOST}:${cluster}`],
          secret,
        }),
      ],
    })
    class ClientModule {}

    const app = await NestFactory.createApplicationContext(ClientModule, { logger: false });
    return new Client(app.get(ServingService), () => app.close());
  }

  keepCalling(): void {
    const { servings } = this;
    this.clients = [
      this.keep('gRPC', (id) => servings.batchedRun<number, number>('by gRPC', id)),
      this.keep('cluster', (id) => servings.batchedRun<object, number>('squares', { id })),
    ];
  }

  /** Resolves once each way has this many more answers. */
  async answered(more: number): Promise<void> {
    const least = new Map([...this.answers].map(([by, count]) => [by, count + more]));
    while ([...least].some(([by, count]) => this.answers.get(by)! < count)) {
      await new Promise<void>((resolve) => this.waiting.add(resolve));
    }
  }

  async end(): Promise<void> {
    this.isOver = true;
    await Promise.all(this.clients);
    await this.close();
  }

  private async keep(by: string, call: (id: number) => Promise<number>): Promise<void> {
    this.answers.set(by, 0);
    while (!this.isOver) {
      const id = nextId++;
      try {
        const square = await call(id);
        this.answers.set(by, this.answers.get(by)! + 1);
        if (square !== id ** 2) {
          this.faults.push(`${square} for ${id} by ${by}`);
        }
      } catch (error) {
        if (!isServingError(error) || error.statusCode !== 503) {
          this.faults.push(`${String(error)} by ${by}`);
        }
        await pause(20);
      }
      const waiting = [...this.waiting];
      this.waiting.clear();
      waiting.forEach((resolve) => resolve());
    }
  }
}

type Port = 'http' | 'grpc' | 'cluster';

/** Connections that are up to no good. */
class Attackers {
  made = 0;
  most = 0;
  private readonly open = new Set<Socket>();

  constructor(
    private readonly stage: Stage,
    private readonly ports: Readonly<Record<Port, number>>,
  ) {}

  add(count: number): void {
    for (let i = 0; i < count && this.open.size < MOST_ATTACKERS; i++) {
      const name = this.stage.pick(['http', 'grpc', 'cluster'] as const)!;
      void this.attack(this.ports[name], this.stage.pick(WORDS[name])!);
    }
  }

  end(): void {
    this.open.forEach((socket) => socket.destroy());
  }

  private async attack(port: number, words: Buffer): Promise<void> {
    const { stage, open } = this;
    const manner = stage.pick(['leaves', 'resets', 'ends', 'reads nothing', 'slow'] as const)!;
    const time = 3000 * stage.random();
    const socket = connect({ host: HOST, port, allowHalfOpen: true, noDelay: true });
    // The event `error` comes before it.
    const closed = new Promise((resolve) => socket.once('close', resolve));
    this.made++;
    open.add(socket.on('error', () => {}).on('close', () => open.delete(socket)));
    this.most = Math.max(this.most, open.size);
    if (manner !== 'reads nothing') {
      socket.resume();
    }
    if (manner === 'slow') {
      const step = Math.ceil(words.length / 20);
      for (let at = 0; at < words.length && socket.writable; at += step) {
        socket.write(words.subarray(at, at + step));
        await pause(time / 20);
      }
    } else {
      socket.write(words);
    }
    if (manner === 'ends') {
      // Stays open until the application closes it, or its patience ends.
      socket.end();
      await Promise.race([closed, pause(20 * time, undefined, { ref: false })]);
    } else {
      await pause(time);
    }
    if (manner === 'resets' || stage.random() < 0.5) {
      socket.resetAndDestroy();
    } else {
      socket.destroy();
    }
  }
}

const http = (...lines: readonly string[]): Buffer => Buffer.from(lines.join('\r\n'));
const infer = ['POST /v2/models/squares/infer HTTP/1.1', 'Host: site'];

/** A frame of HTTP/2, of this type, with these flags, on this stream. */
const frame = (type: number, flags: number, stream: number, body: readonly number[] = []): Buffer =>
  Buffer.from([0, body.length >> 8, body.length & 255, type, flags, 0, 0, 0, stream, ...body]);
const preface = Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n');
const settings = frame(4, 0, 0);
const http2 = (...frames: readonly Buffer[]): Buffer =>
  Buffer.concat([preface, settings, ...frames]);
const noise = Buffer.from(Array.from({ length: 4096 }, (_, i) => (i * 197 + (i >> 3)) & 255));

/** The handshake of a node, of another secret. */
const stranger = (pattern: string, data: object): Buffer => {
  const text = JSON.stringify({ pattern, data, id: '1' });
  return Buffer.from(`${text.length}#${text}`);
};

const WORDS: Readonly<Record<Port, readonly Buffer[]>> = {
  http: [
    Buffer.alloc(0),
    http('POST /v2/models/squares/infer HTTP/1.1', 'Host: site', 'Content-Le'),
    http(...infer, 'Content-Length: 1000', '', '{"inputs": ['),
    http(...infer, 'Transfer-Encoding: chunked', '', 'ffff', '{"inp'),
    http(...infer, 'Content-Length: 4', 'Content-Length: 5', '', '{}{}'),
    http(...infer, 'Transfer-Encoding: chunked', '', 'no number', ''),
    http(...infer, `X: ${'x'.repeat(100_000)}`, '', ''),
    http(...Array.from({ length: 200 }, () => 'GET /v2 HTTP/1.1\r\nHost: site\r\n'), ''),
    noise,
  ],
  grpc: [
    Buffer.alloc(0),
    preface,
    http2(),
    http2(frame(0, 0, 1, [120])),
    http2(frame(6, 0, 0, [1, 2, 3])),
    http2(frame(8, 0, 0, [0, 0, 0, 0])),
    http2(frame(1, 4, 1, [255, 255, 255, 255, 255])),
    http2(frame(1, 4, 1, [0x82, 0x86, 0x84])),
    http2(...Array.from({ length: 100 }, (_, i) => frame(1, 5, 2 * i + 1, [0x82, 0x86, 0x84]))),
    http2(Buffer.from([255, 255, 255, 0, 0, 0, 0, 0, 1])),
    http2(...Array.from({ length: 2000 }, () => frame(6, 0, 0, [1, 2, 3, 4, 5, 6, 7, 8]))),
    http2(...Array.from({ length: 2000 }, () => settings)),
    http('GET / HTTP/1.1', 'Host: site', '', ''),
    noise,
  ],
  cluster: [
    Buffer.alloc(0),
    Buffer.from('12'),
    Buffer.from('3#abc'),
    Buffer.from('999999999#{'),
    Buffer.from('9'.repeat(4000)),
    Buffer.from('100#{"pattern":"sv.default.who"'),
    stranger('sv.default.who', { nonce: 'n' }),
    stranger('sv.default.who', { nonce: 'n'.repeat(200) }),
    stranger('sv.default.link', { address: 'x', proof: 'none' }),
    stranger('sv.default.s.squares', { id: 7 }),
    stranger('no such pattern', {}),
    http('GET / HTTP/1.1', 'Host: site', '', ''),
    noise,
  ],
};

/**
 * A port that was free a moment ago, below those that the system gives to clients: one of them could
 * take it before its server listens.
 */
async function freePort(): Promise<number> {
  for (;;) {
    const port = randomInt(10_000, 20_000);
    const server = createServer().listen(port, HOST);
    const isFree = await once(server, 'listening').then(
      () => true,
      () => false,
    );
    if (isFree) {
      await once(server.close(), 'close');
      return port;
    }
  }
}

import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import {
  type CanActivate,
  Controller,
  Get,
  Inject,
  Injectable,
  type LoggerService,
  type MessageEvent,
  Param,
  Scope,
  Sse,
  UseGuards,
} from '@nestjs/common';
import { ApplicationConfig } from '@nestjs/core';
import { FastifyAdapter } from '@nestjs/platform-fastify';
import { Test } from '@nestjs/testing';
import {
  Batched,
  type CallEndEvent,
  asCaller,
  CallCancelledError,
  currentSignal,
  InjectServing,
  Serving,
  type ServingDefinition,
  ServingModule,
  ServingService,
  withOrigin,
} from 'nestjs-serving';
import { once } from 'node:events';
import type { Server, ServerResponse } from 'node:http';
import { connect as connectHttp2, constants } from 'node:http2';
import type { Socket } from 'node:net';
import { map, type Observable } from 'rxjs';
import { useAppProcesses } from '../../fixtures/http/app-process.js';
import { HeldFunction } from '../../fixtures/batching/held-function.js';
import {
  describeOnPlatforms,
  type Listen,
  type Site,
} from '../../fixtures/partitions/platforms.js';
import { RawClient } from '../../fixtures/cluster/raw-client.js';
import { until } from '../../fixtures/async/streams.js';

/** The batches of these tests, new for each test. */
let held: HeldFunction;
/** Handlers wait here between two of their steps. */
let gate: { readonly opened: Promise<void>; open(): void; passed: number };
/** Replies of the calls that handlers left running. */
let leftOver: Promise<unknown>[];
/** The signals that handlers received. */
let signals: (AbortSignal | undefined)[];

const pairs = { batchSize: 2 };
const hold = (texts: readonly string[]) => held.useFactory()(texts) as Promise<string[]>;

const servings: ServingDefinition[] = [
  { name: 'held', ...pairs, useFactory: () => hold },
  {
    name: 'counter',
    useFactory: () =>
      async function* (texts: string[]) {
        for (let step = 0; ; step++) {
          yield texts.map(() => `${step}`);
          await new Promise(setImmediate);
        }
      },
  },
];

@Injectable()
class Loader {
  @Batched(pairs)
  load(texts: string[]): Promise<string[]> {
    return hold(texts);
  }
}

@Injectable({ scope: Scope.REQUEST })
class RequestLoader {
  constructor(@Inject(ServingService) private readonly service: ServingService) {}

  load(text: string): Promise<unknown> {
    return this.service.batchedRun('held', text);
  }
}

@Injectable()
class SlowGuard implements CanActivate {
  async canActivate(): Promise<boolean> {
    gate.passed++;
    await gate.opened;
    return true;
  }
}

@Controller()
class Front {
  constructor(
    @Inject(ServingService) private readonly service: ServingService,
    @InjectServing('held') private readonly serving: Serving<string, string>,
    @Inject(Loader) private readonly loader: Loader,
  ) {}

  @Get('service/:text')
  viaService(@Param('text') text: string): Promise<unknown> {
    return this.service.batchedRun('held', text);
  }

  @Get('handle/:text')
  async viaHandle(@Param('text') text: string): Promise<string> {
    await Promise.resolve();
    return this.serving.batchedRun(text);
  }

  @Get('named/:text')
  @Batched('held')
  viaName(@Param('text') text: string): string {
    return text;
  }

  @Get('method/:text')
  @Batched({ ...pairs, types: [String] })
  viaMethod(@Param('text') texts: string[]): Promise<string[]> {
    return hold(texts);
  }

  @Get('provider/:text')
  viaProvider(@Param('text') text: string): Promise<string> {
    return asCaller(this.loader).load(text);
  }

  @Get('stream/:text')
  async viaStream(@Param('text') text: string): Promise<unknown> {
    for await (const { output } of this.service.stream<string>('held', text)) {
      return output;
    }
    return undefined;
  }

  @Get('alone/:text')
  viaRun(@Param('text') text: string): Promise<unknown> {
    return this.service.run('held', text);
  }

  @Get('outlives/:text')
  async outlives(@Param('text') text: string): Promise<unknown> {
    const reply = this.service.batchedRun('held', text, { signal: new AbortController().signal });
    leftOver.push(reply);
    return reply;
  }

  @Get('answers/:text')
  answers(@Param('text') text: string): string {
    leftOver.push(this.service.batchedRun('held', text));
    return 'answered';
  }

  @Get('guarded/:text')
  @UseGuards(SlowGuard)
  guarded(@Param('text') text: string): Promise<unknown> {
    return this.service.batchedRun('held', text);
  }

  @Get('guarded-method/:text')
  @UseGuards(SlowGuard)
  @Batched({ types: [String] })
  guardedMethod(@Param('text') texts: string[]): Promise<string[]> {
    return hold(texts);
  }

  @Get('signals')
  async signals(): Promise<string> {
    signals.push(currentSignal());
    await Promise.resolve();
    signals.push(withOrigin('elsewhere', currentSignal));
    return 'done';
  }

  @Sse('events')
  events(): Observable<MessageEvent> {
    return this.service
      .stream<string, string>('counter', 'x')
      .pipe(map(({ output }) => ({ data: output })));
  }

  @Sse('events-after/:text')
  async eventsAfter(@Param('text') text: string): Promise<Observable<MessageEvent>> {
    await this.service.batchedRun('held', text);
    return this.events();
  }

  @Get('letters')
  async *letters(): AsyncGenerator<string> {
    for await (const { output } of this.service.stream<string, string>('counter', 'x')) {
      yield output;
    }
  }

  @Get('collects')
  async collects(): Promise<string> {
    for await (const { output } of this.service.stream<string, string>('counter', 'x')) {
      signals.push(undefined);
      if (output === 'never') {
        break;
      }
    }
    return 'all';
  }
}

@Controller()
class PerRequest {
  constructor(@Inject(RequestLoader) private readonly loader: RequestLoader) {}

  @Get('per-request/:text')
  load(@Param('text') text: string): Promise<unknown> {
    return this.loader.load(text);
  }
}

const metadata = {
  imports: [ServingModule.forRoot({ servings })],
  controllers: [Front, PerRequest],
  providers: [Loader, RequestLoader, SlowGuard],
};

/** The application and the ends of its calls. */
async function start(
  listen: Listen,
  logger?: LoggerService,
): Promise<Site & { readonly ends: CallEndEvent[]; waiting(): number }> {
  const site = await listen(metadata, { configure: (app) => logger && app.useLogger(logger) });
  const service = site.app.get(ServingService);
  const ends: CallEndEvent[] = [];
  service.eventsOf('call:end').subscribe((event) => ends.push(event));
  const waiting = (): number =>
    [...service.queueDepths().values()].reduce((sum, depth) => sum + depth, 0);
  return Object.assign(site, { ends, waiting });
}

const clients: RawClient[] = [];

async function connect({ app }: Site): Promise<RawClient> {
  const client = await RawClient.connect(await app.getUrl());
  clients.push(client);
  return client;
}

/** The connections that the server accepts from now on. */
function connectionsOf({ app }: Site): Socket[] {
  const sockets: Socket[] = [];
  (app.getHttpServer() as Server).on('connection', (socket: Socket) => sockets.push(socket));
  return sockets;
}

beforeEach(() => {
  held = new HeldFunction();
  let open!: () => void;
  const opened = new Promise<void>((resolve) => (open = resolve));
  gate = { opened, open, passed: 0 };
  leftOver = [];
  signals = [];
});

/** Finishes every batch, so that applications can close, and disconnects the remaining clients. */
const release = (): void => {
  clients.splice(0).forEach((client) => client.leave());
  gate.open();
  const { batches } = held;
  batches.splice(0).forEach(({ rows, finish }) => finish([...rows]));
  held.batches.push = (...more) => {
    more.forEach(({ rows, finish }) => finish([...rows]));
    return 0;
  };
};

const ways = ['service', 'handle', 'named', 'method', 'provider', 'stream', 'per-request'] as const;

describeOnPlatforms('Clients over HTTP', (listen) => {
  describe('that leave', () => {
    afterEach(release);

    it.each(ways)(
      '[7.3] A client that leaves gives its place in the queue to others: %s',
      async (way) => {
        const site = await start(listen);
        const first = site.get(`/${way}/first`);
        await until(() => held.batches.length === 1);
        const leaving = await connect(site);
        leaving.get(`/${way}/left`);
        await until(() => site.waiting() === 1);
        const others = ['b', 'c'].map((text) => site.get(`/${way}/${text}`));
        await until(() => site.waiting() === 3);

        leaving.leave();
        await until(() => site.waiting() === 2);
        held.next().finish(['FIRST']);
        await until(() => held.batches.length === 1);

        expect(held.rows[0]!.toSorted()).toEqual(['b', 'c']);
        held.next().finish(['B', 'C']);
        expect((await Promise.all([first, ...others])).map(({ status }) => status)).toEqual([
          200, 200, 200,
        ]);
        expect(site.ends.filter(({ error }) => error)).toMatchObject([
          { stage: 'waiting', error: { code: 'SERVING_CANCELLED' }, cancelled: true },
        ]);
      },
    );

    it.each([...ways, 'alone'])(
      '[7.3] The handler of a client that left does not wait for its running call, and others get their replies: %s',
      async (way) => {
        const site = await start(listen);
        const leaving = await connect(site);
        leaving.get(`/${way}/left`);
        await until(() => held.batches.length === 1);

        leaving.leave();
        await until(() => site.ends.length === 1);

        expect(site.ends).toMatchObject([
          { stage: 'running', error: { name: 'CallCancelledError', statusCode: 499 } },
        ]);
        held.next().finish(['LEFT']);
        const reply = site.get(`/${way}/b`);
        await until(() => held.batches.length === 1);
        held.next().finish(['B']);
        expect(await reply).toMatchObject({ status: 200, body: 'B' });
      },
    );

    it('[7.3] The handler of a client that left does not wait for a batch shared with others', async () => {
      const site = await start(listen);
      const first = site.get('/service/first');
      await until(() => held.batches.length === 1);
      const leaving = await connect(site);
      leaving.get('/service/left');
      const other = site.get('/service/b');
      await until(() => site.waiting() === 2);
      held.next().finish(['FIRST']);
      await until(() => held.batches.length === 1);

      leaving.leave();
      await until(() => site.ends.length === 2);
      const { rows, finish } = held.next();
      finish(rows.map((row) => row.toUpperCase()));

      expect(rows.toSorted()).toEqual(['b', 'left']);
      expect(await other).toMatchObject({ status: 200, body: 'B' });
      expect(await first).toMatchObject({ status: 200, body: 'FIRST' });
    });

    it('[7.3] A client that leaves cancels all requests that it has pipelined', async () => {
      const site = await start(listen);
      const client = await connect(site);
      client.get('/service/a', '/service/b', '/service/c', '/service/d');
      await until(() => held.batches.length === 1 && site.waiting() === 2);

      client.leave();
      await until(() => site.ends.length === 4);

      expect(site.ends.map(({ error }) => error)).toEqual(
        Array.from({ length: 4 }, () => expect.any(CallCancelledError)),
      );
      expect(site.waiting()).toBe(0);
    });

    it.each(['guarded', 'guarded-method'])(
      '[7.3] Nothing runs for a client that left before its call was made: %s',
      async (path) => {
        const site = await start(listen);
        const [connections, client] = [connectionsOf(site), await connect(site)];
        client.get(`/${path}/left`);
        await until(() => gate.passed === 1);

        client.leave();
        await once(connections[0]!, 'close');
        gate.open();
        await until(() => site.ends.length === 1);

        expect(site.ends).toMatchObject([
          {
            stage: 'preprocessing',
            rows: 0,
            error: { code: 'SERVING_CANCELLED' },
            cancelled: true,
          },
        ]);
        expect(held.batches).toEqual([]);
      },
    );

    it('[7.3] A call with a signal of its own goes on after its client has left', async () => {
      const site = await start(listen);
      const [connections, client] = [connectionsOf(site), await connect(site)];
      client.get('/outlives/a');
      await until(() => held.batches.length === 1);

      client.leave();
      await once(connections[0]!, 'close');
      held.next().finish(['A']);

      expect(await leftOver[0]).toBe('A');
    });

    it('[7.3] A call that its handler left running after the answer goes on when the client leaves', async () => {
      const site = await start(listen);
      const [connections, client] = [connectionsOf(site), await connect(site)];
      client.get('/answers/a');
      expect(await client.answers(1)).toEqual([{ status: 200, body: 'answered' }]);

      client.leave();
      await once(connections[0]!, 'close');
      await until(() => held.batches.length === 1);
      held.next().finish(['A']);

      expect(await leftOver[0]).toBe('A');
    });

    it('[7.3] A call behind an answer that still waits for its turn goes on when the client leaves', async () => {
      const site = await start(listen);
      const responses: ServerResponse[] = [];
      (site.app.getHttpServer() as Server).on('request', (_, response) => responses.push(response));
      const client = await connect(site);
      client.get('/alone/first', '/answers/b');
      await until(() => responses[1]?.writableEnded === true);

      client.leave();
      await until(() => site.ends.length === 1);
      held.batches.find(({ rows }) => rows[0] === 'b')!.finish(['B']);

      expect(await leftOver[0]).toBe('B');
      expect(site.ends[0]).toMatchObject({
        mode: 'inline',
        error: { code: 'SERVING_CANCELLED' },
        cancelled: true,
      });
    });

    it.each(['service/a', 'method/a', 'events', 'events-after/a', 'letters'])(
      '[7.3] A client that leaves causes no log entry: %s',
      async (path) => {
        const logged: unknown[] = [];
        const log = (...words: unknown[]): unknown => logged.push(words);
        const site = await start(listen, { log: () => {}, warn: log, error: log });
        const client = await connect(site);
        client.get(`/${path}`);
        await (path.endsWith('/a') ? until(() => held.batches.length === 1) : client.something());

        client.leave();
        await until(() => site.ends.length === 1);
        await new Promise(setImmediate);

        expect(logged).toEqual([]);
      },
    );

    it.each(['events', 'letters'])(
      '[7.3] [8.2] A client that leaves ends its stream without an error: %s',
      async (path) => {
        const site = await start(listen);
        const client = await connect(site);
        client.get(`/${path}`);
        await client.something();

        client.leave();
        await until(() => site.ends.length === 1);

        expect(site.ends[0]).toMatchObject({ mode: 'stream' });
        expect(site.ends[0]).not.toHaveProperty('error');
      },
    );

    it('[7.3] [8.2] A client that leaves ends a stream that its handler collects', async () => {
      const site = await start(listen);
      const client = await connect(site);
      client.get('/collects');
      await until(() => signals.length > 2);

      client.leave();
      await until(() => site.ends.length === 1);

      expect(site.ends).toMatchObject([
        { mode: 'stream', error: { code: 'SERVING_CANCELLED' }, cancelled: true },
      ]);
    });
  });

  describe('that stay', () => {
    afterEach(release);

    it('[7.3] Calls on a kept-alive connection are answered, and only the last one is cancelled when the client leaves', async () => {
      const site = await start(listen);
      const client = await connect(site);
      for (const text of ['a', 'b', 'c']) {
        client.get(`/service/${text}`);
        await until(() => held.batches.length === 1);
        held.next().finish([text.toUpperCase()]);
        await client.answers(site.ends.length);
      }
      client.get('/service/d');
      await until(() => held.batches.length === 1);

      client.leave();
      await until(() => site.ends.length === 4);

      expect(await client.answers(3)).toEqual(
        ['A', 'B', 'C'].map((body) => ({ status: 200, body })),
      );
      expect(site.ends.map(({ error }) => error)).toEqual([
        undefined,
        undefined,
        undefined,
        expect.any(CallCancelledError),
      ]);
    });

    it('[7.3] Requests leave no listener on a kept-alive connection', async () => {
      const site = await start(listen);
      const [connections, client] = [connectionsOf(site), await connect(site)];
      await until(() => connections.length === 1);
      const before = connections[0]!.listenerCount('close');
      client.get('/signals', '/signals', '/service/a', '/service/b');
      await until(() => held.batches.length === 1);
      // One listener belongs to Node, for the response whose turn it is.
      expect(connections[0]!.listenerCount('close')).toBe(before + 2);

      held.next().finish(['A', 'B']);
      await client.answers(4);

      expect(connections[0]!.listenerCount('close')).toBe(before);
      client.leave();
      await once(connections[0]!, 'close');
      expect(signals.map((signal) => signal!.aborted)).toEqual([false, false, false, false]);
    });

    it('[7.3] A client gets all answers to its pipelined requests in order', async () => {
      const site = await start(listen);
      const client = await connect(site);
      client.get('/service/a', '/service/b', '/service/c');
      await until(() => held.batches.length === 1 && site.waiting() === 1);

      held.next().finish(['A', 'B']);
      await until(() => held.batches.length === 1);
      held.next().finish(['C']);

      expect(await client.answers(3)).toEqual(
        ['A', 'B', 'C'].map((body) => ({ status: 200, body })),
      );
    });

    it('[7.3] A half-closed connection is still answered when the server allows it', async () => {
      const site = await start(listen);
      const connections = connectionsOf(site);
      Object.assign(site.app.getHttpServer() as Server, { httpAllowHalfOpen: true });
      const client = await connect(site);
      client.get('/service/a');
      await until(() => held.batches.length === 1);

      client.endSpeaking();
      await once(connections[0]!, 'end');
      held.next().finish(['A']);

      expect(await client.answers(1)).toEqual([{ status: 200, body: 'A' }]);
    });

    it('[7.3] A half-closed connection is closed by Node by default, which cancels its call', async () => {
      const site = await start(listen);
      const client = await connect(site);
      client.get('/service/a');
      await until(() => held.batches.length === 1);

      client.endSpeaking();
      await until(() => site.ends.length === 1);

      expect(site.ends).toMatchObject([{ error: { code: 'SERVING_CANCELLED' }, cancelled: true }]);
      expect(await client.answers(1)).toEqual([]);
    });

    it('A request has one signal in all of its handlers, also inside withOrigin()', async () => {
      const site = await start(listen);

      await site.get('/signals');

      expect(signals).toEqual([expect.any(AbortSignal), signals[0]]);
      expect(signals[1]).toBe(signals[0]);
    });
  });
});

describe('Clients over HTTP/2', () => {
  afterEach(release);

  it('[7.3] A client over HTTP/2 can cancel one request without the others of its connection', async () => {
    const testing = await Test.createTestingModule(metadata).compile();
    const app = testing.createNestApplication(new FastifyAdapter({ http2: true }), {
      logger: false,
    });
    await app.listen(0, '127.0.0.1');
    const ends: CallEndEvent[] = [];
    app
      .get(ServingService)
      .eventsOf('call:end')
      .subscribe((event) => ends.push(event));
    const session = connectHttp2(await app.getUrl());
    const leaving = session.request({ ':path': '/alone/left' });
    const staying = session.request({ ':path': '/alone/a' }).setEncoding('utf8');
    await until(() => held.batches.length === 1);

    leaving.close(constants.NGHTTP2_CANCEL);
    await until(() => ends.length === 1);
    held.next().finish(['LEFT']);
    await until(() => held.batches.length === 1);
    held.next().finish(['A']);

    expect(await staying.toArray()).toEqual(['A']);
    expect(ends.map(({ error }) => error)).toEqual([expect.any(CallCancelledError), undefined]);
    session.close();
    await app.close();
  });
});

describe('A client that leaves a process', () => {
  const run = useAppProcesses();

  it('[7.3] A client that leaves does not end the process through calls that the handler awaits later', async () => {
    const app = run('early-calls');
    const [url] = await app.told<string>('listening');
    const client = await RawClient.connect(url!);
    client.get('/');
    await app.told('running', 3);

    client.leave();
    await app.told('ended', 4);
    app.tell('go on');

    expect(await app.told('settled')).toEqual([
      Array.from({ length: 4 }, () => 'CallCancelledError'),
    ]);
    app.kill('SIGTERM');
    expect(await app.ended).toMatchObject({ output: '' });
  });
});

describe('Requests of an application', () => {
  it('One interceptor tracks requests, whatever the number of modules that register servings', async () => {
    const [root, feature] = [
      ServingModule.forRoot({ servings }),
      ServingModule.forFeature({ servings: [{ ...servings[0]!, name: 'more' }] }),
    ];
    const testing = await Test.createTestingModule({ imports: [root, feature] }).compile();

    expect(testing.get(ApplicationConfig, { strict: false }).getGlobalInterceptors()).toHaveLength(
      1,
    );
    await testing.close();
  });
});

describe('Outside of a request', () => {
  it('There is no current signal outside of a request', () => {
    expect(currentSignal()).toBeUndefined();
    expect(withOrigin('nightly', currentSignal)).toBeUndefined();
  });
});

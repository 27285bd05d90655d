import { describe, expect, it } from '@jest/globals';
import { ApplicationConfig } from '@nestjs/core';
import { FastifyAdapter } from '@nestjs/platform-fastify';
import { Test } from '@nestjs/testing';
import {
  type CallEndEvent,
  CallCancelledError,
  ServingModule,
  ServingService,
} from 'nestjs-serving';
import { once } from 'node:events';
import type { Server, ServerResponse } from 'node:http';
import { connect as connectHttp2, constants } from 'node:http2';
import { useAppProcesses } from '../../fixtures/http/app-process.js';
import { describeOnPlatforms } from '../../fixtures/partitions/platforms.js';
import { RawClient } from '../../fixtures/cluster/raw-client.js';
import { until } from '../../fixtures/async/streams.js';
import {
  connect,
  connectionsOf,
  gate,
  held,
  leftOver,
  metadata,
  servings,
  signals,
  start,
  useHeldCalls,
} from '../../fixtures/serving/held-calls.js';

const ways = ['service', 'handle', 'named', 'method', 'provider', 'stream', 'per-request'] as const;

describeOnPlatforms('Clients over HTTP', (listen) => {
  describe('that leave', () => {
    useHeldCalls();

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
      // The batch of the call that has left holds the partition until its end.
      held.next().finish(['FIRST']);
      await until(() => held.batches.length === 1);
      held.next().finish(['B']);

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
});

describe('Clients over HTTP/2', () => {
  useHeldCalls();

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
    const [url] = await app.messages<string>('listening');
    const client = await RawClient.connect(url!);
    client.get('/');
    await app.messages('running', 2);

    client.leave();
    await app.messages('ended', 4);
    app.send('go on');

    expect(await app.messages('settled')).toEqual([
      Array.from({ length: 4 }, () => 'CallCancelledError'),
    ]);
    app.kill('SIGTERM');
    expect(await app.ended).toMatchObject({ output: '' });
  });
});

describe('Requests of an application', () => {
  it.each([
    [0, 'no interceptor', {}],
    [1, 'one interceptor with requestContext', { requestContext: true }],
  ])(
    '[R1] Routes have %i: %s, whatever the number of modules that register servings',
    async (count, _, options) => {
      const [root, feature] = [
        ServingModule.forRoot({ servings, ...options }),
        ServingModule.forFeature({ servings: [{ ...servings[0]!, name: 'more' }] }),
      ];
      const testing = await Test.createTestingModule({ imports: [root, feature] }).compile();

      expect(
        testing.get(ApplicationConfig, { strict: false }).getGlobalInterceptors(),
      ).toHaveLength(count);
      await testing.close();
    },
  );
});

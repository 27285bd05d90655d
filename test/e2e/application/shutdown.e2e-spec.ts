import { once } from 'node:events';
import { connect } from 'node:net';
import { PassThrough } from 'node:stream';
import { setTimeout } from 'node:timers/promises';
import { Controller, Get, type MessageEvent, Param, Sse, StreamableFile } from '@nestjs/common';
import { expect, it } from '@jest/globals';
import {
  Batched,
  asCaller,
  type ServingDefinition,
  ServingModule,
  ServingService,
} from 'nestjs-serving';
import { firstValueFrom, map, type Observable, Subject } from 'rxjs';
import {
  describeOnPlatforms,
  type Listen,
  type Site,
} from '../../fixtures/partitions/platforms.js';

const A_DAY = 24 * 60 * 60 * 1000;
const upper = {
  name: 'upper',
  model: { useFactory: () => (texts: string[]) => texts.map((text) => text.toUpperCase()) },
  batchTimeout: A_DAY,
};

/** Called when the next call has arrived. */
let arrived: () => void;

@Controller()
class SlowController {
  constructor(private readonly servings: ServingService) {}

  @Get('serving')
  serving(): Promise<unknown> {
    const reply = this.servings.batchedRun('upper', 'served');
    arrived();
    return reply;
  }

  @Get('method')
  method(): Promise<string> {
    const reply = asCaller<SlowController>(this).batched('batched');
    arrived();
    return reply;
  }

  @Batched({ batchTimeout: A_DAY })
  batched(texts: string[]): string[] {
    return texts.map((text) => text.toUpperCase());
  }
}

describeOnPlatforms('Shutdown', (listen) => {
  it.each([
    ['serving', 'SERVED'],
    ['method', 'BATCHED'],
  ])(
    '[9.3] Rows in the open window of a %s run at shutdown, since no others will arrive',
    async (path, body) => {
      const waiting = new Promise<void>((resolve) => (arrived = resolve));
      const site = await listen({
        imports: [ServingModule.forRoot({ servings: [upper] })],
        controllers: [SlowController],
      });
      const reply = site.get(`/${path}`, { connection: 'close' });
      await waiting;

      await site.app.close();

      expect(await reply).toMatchObject({ status: 200, body });
    },
  );
});

/**
 * The shutdown limit of these tests in milliseconds, and the time by which an application has
 * closed.
 */
const LIMIT = 300;
/** The default limit, which would end the calls, too, if the servings' own limit did not. */
const CLOSED = 30_000;

const never = (): Promise<never> => new Promise(() => {});
let running: Subject<void>;

@Controller()
class StuckController {
  constructor(private readonly servings: ServingService) {}

  @Get('running/:name')
  running(@Param('name') name: string): Promise<unknown> {
    return this.servings.batchedRun(name, 'row');
  }

  @Get('inline')
  inline(): Promise<unknown> {
    return this.servings.run('function', 'row');
  }

  @Get('method')
  @Batched({ shutdown: { timeout: LIMIT } })
  method(): Promise<never> {
    running.next();
    return never();
  }

  @Get('body')
  @Batched('function')
  body(): Promise<never> {
    running.next();
    return never();
  }

  @Sse('events')
  events(): Observable<MessageEvent> {
    return this.servings
      .stream('stalling', 'row')
      .pipe(map(({ output }) => ({ data: output as string })));
  }

  /** An answer without an end that calls no serving. */
  @Get('open')
  open(): StreamableFile {
    const file = new PassThrough();
    file.write('the first piece');
    return new StreamableFile(file);
  }

  @Get('large')
  large(): string {
    return 'x'.repeat(50_000_000);
  }
}

/** Runs batches that never end and reports their begin. */
const stuck = (): Promise<never> => (running.next(), never());
const definitions: ServingDefinition[] = [
  { name: 'function', model: { useFactory: () => stuck } },
  { name: 'preprocess', model: { useFactory: () => (rows: unknown[]) => rows }, preprocess: stuck },
  {
    name: 'postprocess',
    model: { useFactory: () => (rows: unknown[]) => rows },
    postprocess: stuck,
  },
  {
    name: 'thread',
    model: { useFile: new URL('../../fixtures/workers/never.mjs', import.meta.url) },
  },
  {
    name: 'stalling',
    model: {
      useFactory: () =>
        async function* (rows: unknown[]) {
          yield rows;
          await never();
        },
    },
  },
];
const servings = definitions.map((definition) => ({ ...definition, shutdown: { timeout: LIMIT } }));

/** Closes the application and returns the milliseconds that it took. */
async function close({ app }: Site): Promise<number> {
  const began = performance.now();
  await app.close();
  return performance.now() - began;
}

describeOnPlatforms('The limit of shutdown', (listen) => {
  const start = (): ReturnType<Listen> => {
    running = new Subject();
    return listen({
      imports: [ServingModule.forRoot({ servings })],
      controllers: [StuckController],
    });
  };

  /** An application with a call that never ends. */
  async function startCall(path: string) {
    const site = await start();
    const began = firstValueFrom(running);
    const reply = site.get(`/${path}`);
    await began;
    return { site, reply };
  }

  it.each([
    'running/function',
    'running/preprocess',
    'running/postprocess',
    'inline',
    'method',
    'body',
  ])(
    '[9.3] [H1] [H2] [H4] A client whose call never ends gets 503, and the application closes: %s',
    async (path) => {
      const { site, reply } = await startCall(path);

      expect(await close(site)).toBeLessThan(CLOSED);

      expect(await reply).toMatchObject({ status: 503 });
    },
  );

  it.each(['running/function', 'method'])(
    '[9.3] [H1] A client gets 503, too, if the event loop stood still when the limit passed: %s',
    async (path) => {
      const { site, reply } = await startCall(path);

      const closed = close(site);
      await setTimeout(LIMIT / 2);
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 4 * LIMIT);

      expect(await reply).toMatchObject({ status: 503 });
      expect(await closed).toBeLessThan(CLOSED);
    },
  );

  it('[9.3] [H1] A client whose batch never ends in a thread gets 503, and the application closes', async () => {
    const site = await start();
    const started = firstValueFrom(site.app.get(ServingService).eventsOf('batch:start'));
    const reply = site.get('/running/thread');
    await started;

    expect(await close(site)).toBeLessThan(CLOSED);

    expect(await reply).toMatchObject({ status: 503 });
  });

  it.each(['events', 'open', 'large'])(
    '[9.3] [H1] A client that neither reads nor leaves does not delay closing: /%s',
    async (path) => {
      const site = await start();
      const { hostname, port } = new URL(await site.app.getUrl());
      const socket = connect({ host: hostname, port: Number(port) }).pause();
      socket.on('error', () => {});
      socket.write(`GET /${path} HTTP/1.1\r\nHost: site\r\n\r\n`);
      await once(socket, 'readable');

      expect(await close(site)).toBeLessThan(CLOSED);

      socket.destroy();
    },
  );
});

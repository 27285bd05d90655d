import { expect, it } from '@jest/globals';
import { Controller, Get, type MessageEvent, Param, Sse } from '@nestjs/common';
import {
  Batched,
  defineServing,
  InjectServing,
  ServingModule,
  type ServingOf,
  ServingService,
} from 'nestjs-serving';
import {
  BatchScript,
  overrideServing,
  recordBatches,
  settle,
  VirtualTime,
} from 'nestjs-serving/testing';
import { once } from 'node:events';
import { get, type IncomingMessage } from 'node:http';
import { firstValueFrom, map, type Observable, take, toArray } from 'rxjs';
import { describeOnPlatforms, type Site } from '../../fixtures/partitions/platforms.js';

/** A model file that does not exist. */
const model = new TextEncoder().encode('no model at all');

const writer = defineServing({
  name: 'writer',
  model,
  batchSize: 8,
  queue: { separateOrigins: true },
  preprocess: (prompt: string) => ({ batch: prompt }),
  postprocess: (text: string) => text,
});

const embedder = defineServing({
  name: 'embedder',
  model,
  batchSize: 3,
  batchTimeout: 60_000,
  preprocess: (text: string) => ({ batch: text }),
  postprocess: (vector: number[]) => vector,
});

@Controller()
class Texts {
  constructor(
    @InjectServing(writer) private readonly writing: ServingOf<typeof writer>,
    private readonly servings: ServingService,
  ) {}

  @Get('write/:prompt')
  write(@Param('prompt') prompt: string): Promise<string> {
    return this.writing.batchedRun(prompt);
  }

  @Sse('stream/:prompt')
  stream(@Param('prompt') prompt: string): Observable<MessageEvent> {
    return this.writing.stream(prompt).pipe(map(({ output }) => ({ data: output })));
  }

  @Get('embed/:text')
  embed(@Param('text') text: string): Promise<number[]> {
    return this.servings.batchedRun(embedder, text);
  }

  @Get('method/:text')
  @Batched('embedder')
  method(@Param('text') text: string): string {
    return text;
  }
}

const metadata = {
  imports: [ServingModule.forRoot({ servings: [writer, embedder], requestContext: true })],
  controllers: [Texts],
};

describeOnPlatforms('An application under test', (listen) => {
  let script: BatchScript<string, string>;
  let site: Site;

  async function start(): Promise<void> {
    script = BatchScript.of(writer);
    site = await listen(metadata, {
      override: (builder) => {
        overrideServing(builder, embedder).useFunction((texts) =>
          texts.map((text) => [text.length]),
        );
        return overrideServing(builder, writer).useScript(script);
      },
    });
  }

  it('A function in place of the model answers in batches', async () => {
    await start();
    const batches = recordBatches(site.app.get(ServingService));

    const replies = await Promise.all(
      ['embed/a', 'method/bc', 'embed/def'].map((path) => site.get(`/${path}`)),
    );

    expect(replies.map(({ body }) => body)).toEqual([[1], [2], [3]]);
    await settle();
    expect(batches.map(({ serving, rows, reason }) => ({ serving, rows, reason }))).toEqual([
      { serving: 'embedder', rows: 3, reason: 'full' },
    ]);
  });

  it('[4.10] A script reports the origin of calls', async () => {
    await start();

    const reply = site.get('/write/a');
    const batch = await script.next();
    const { origin } = batch;
    batch.finish(['A']);
    await reply;

    expect(origin).toBe('http');
  });

  it('Each client gets its own row of the batch that the test finishes', async () => {
    await start();
    const first = site.get('/write/first');
    const running = await script.next();
    const started = callsStarted(2);
    const others = [site.get('/write/a'), site.get('/write/b')];
    await started;
    running.finish(['1st']);

    const grown = await script.next();
    const rows = [...grown.rows];
    grown.finish((prompts) => prompts.map((prompt) => prompt.toUpperCase()));

    expect(rows.toSorted()).toEqual(['a', 'b']);
    expect((await Promise.all([first, ...others])).map(({ body }) => body)).toEqual([
      '1st',
      'A',
      'B',
    ]);
  });

  it('The application answers 503 from the moment in which the partition crashes', async () => {
    await start();

    const reply = site.get('/write/a');
    (await script.next()).crash();

    expect((await reply).status).toBe(503);
    expect((await site.get('/write/b')).status).toBe(503);
  });

  it('The application answers 500 when a batch fails or its output is short, and goes on', async () => {
    await start();

    const failed = site.get('/write/a');
    (await script.next()).fail(new Error('out of memory'));
    expect((await failed).status).toBe(500);
    const short = site.get('/write/b');
    (await script.next()).finish([]);
    expect((await short).status).toBe(500);
    const reply = site.get('/write/c');
    (await script.next()).finish(['C']);

    expect((await reply).body).toBe('C');
  });

  it('Steps are streamed to the client as they arrive, and the batch reports when the client has left', async () => {
    await start();

    const request = get(`${await site.app.getUrl()}/stream/a`);
    const responded = once(request, 'response');
    const batch = await script.next();
    batch.step(['once']);
    const received = receiverOf(((await responded) as [IncomingMessage])[0]);
    await received('data: once');
    batch.step(['upon']);
    await received('data: upon');

    request.destroy();
    for (let tries = 0; batch.isWaiting(0) && tries < 10_000; tries++) {
      await settle();
    }
    expect(batch.isWaiting(0)).toBe(false);
    batch.step(['a time']);
    await settle();

    expect(script.batches).toEqual([]);
  });

  it('The application can be closed once the script is released', async () => {
    await start();
    const replies = Promise.all(['a', 'b'].map((prompt) => site.get(`/write/${prompt}`)));
    await script.next();

    script.release((prompts) => prompts);

    expect((await replies).map(({ body }) => body)).toEqual(['a', 'b']);
    await site.app.close();
  });

  it('A window waits only in virtual time', async () => {
    const time = await VirtualTime.install();
    try {
      await start();
      const batches = recordBatches(site.app.get(ServingService));
      const started = callsStarted(2);
      const replies = Promise.all(['a', 'bc'].map((text) => site.get(`/embed/${text}`)));
      await started;
      await time.advance(59_999);
      expect(batches).toEqual([]);
      await time.advance(1);

      expect((await replies).map(({ body }) => body)).toEqual([[1], [2]]);
      expect(batches).toEqual([
        expect.objectContaining({ rows: 2, reason: 'timeout', wait: 60_000 }),
      ]);
    } finally {
      time.restore();
    }
  });

  /** Resolves when this many further calls have started. */
  function callsStarted(count: number): Promise<unknown> {
    return firstValueFrom(
      site.app.get(ServingService).eventsOf('call:start').pipe(take(count), toArray()),
    );
  }
});

/** A function that resolves when the response has received the text. */
function receiverOf(response: IncomingMessage): (text: string) => Promise<void> {
  let read = '';
  response.on('data', (chunk: Buffer) => (read += chunk.toString()));
  return async (text) => {
    while (!read.includes(text)) {
      await once(response, 'data');
    }
  };
}

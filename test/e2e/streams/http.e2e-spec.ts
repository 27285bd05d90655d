import { once } from 'node:events';
import { get, type IncomingMessage } from 'node:http';
import { beforeEach, expect, it } from '@jest/globals';
import { Controller, Get, type MessageEvent, Param, Query, Sse } from '@nestjs/common';
import {
  DONE,
  InvalidInputError,
  type OutputEvent,
  ServingModule,
  ServingService,
} from 'nestjs-serving';
import { map, type Observable } from 'rxjs';
import { describeOnPlatforms, type Site } from '../../fixtures/partitions/platforms.js';
import { until } from '../../fixtures/async/streams.js';

/** The numbers of running and ended generators. */
const generators = { begun: 0, ended: 0 };

/** Yields the letters of each text, and those of "forever" without end. */
const speller = {
  name: 'speller',
  partitions: 2,
  batchTimeout: 1,
  preprocess: (text: string) => {
    if (text === 'refused') {
      throw new InvalidInputError('This text is refused');
    }
    return { batch: text };
  },
  model: {
    useFactory: () =>
      async function* (texts: string[]) {
        generators.begun++;
        try {
          for (let step = 0; ; step++) {
            if (texts.includes('broken')) {
              throw new RangeError('no memory');
            }
            const letters = texts.map((text) =>
              text === 'forever' ? `${step}` : (text[step] ?? DONE),
            );
            yield letters;
            if (step === 2 && texts.includes('half')) {
              throw new RangeError('no memory');
            }
          }
        } finally {
          generators.ended++;
        }
      },
  },
};

@Controller()
class LettersController {
  constructor(private readonly servings: ServingService) {}

  @Sse('events/:text')
  events(@Param('text') text: string): Observable<MessageEvent> {
    return this.servings
      .stream<string, string>('speller', text)
      .pipe(map(({ output }) => ({ data: { output } })));
  }

  @Get('letters/:text')
  async *letters(@Param('text') text: string, @Query('end') end = '\n'): AsyncGenerator<string> {
    for await (const { output } of this.servings.stream<string, string>('speller', text)) {
      yield `${output}${end}`;
    }
  }

  @Get('last/:text')
  last(@Param('text') text: string): Observable<OutputEvent> {
    return this.servings.stream('speller', text);
  }
}

const metadata = {
  imports: [ServingModule.forRoot({ servings: [speller] })],
  controllers: [LettersController],
};

/** The data of the events in a body. */
const eventsIn = (body: unknown): unknown[] =>
  String(body)
    .split('\n\n')
    .flatMap((event) => event.match(/^data: (.*)$/m)?.[1] ?? []);

/** A response that is read as it arrives. */
async function open(site: Site, path: string): Promise<IncomingMessage> {
  const [response] = (await once(
    get((await site.app.getUrl()) + path, { agent: false }),
    'response',
  )) as [IncomingMessage];
  response.setEncoding('utf8');
  return response;
}

beforeEach(() => {
  Object.assign(generators, { begun: 0, ended: 0 });
});

describeOnPlatforms('Streams over HTTP', (listen) => {
  it('[8.2] [10.4] A stream is sent event by event with @Sse()', async () => {
    const site = await listen(metadata);

    const { status, headers, body } = await site.get('/events/abc');

    expect([status, headers.get('content-type')]).toEqual([200, 'text/event-stream']);
    expect(eventsIn(body)).toEqual(['a', 'b', 'c'].map((output) => JSON.stringify({ output })));
  });

  it('[8.2] [10.4] A stream is sent piece by piece by a handler that generates', async () => {
    const site = await listen(metadata);

    expect(await site.get('/letters/abc')).toMatchObject({ status: 200, body: 'a\nb\nc\n' });
    expect(await site.get('/letters/abc?end=.')).toMatchObject({ status: 200, body: 'a.b.c.' });
  });

  it('[8.2] [10.4] A handler that returns a stream answers with its last event', async () => {
    const site = await listen(metadata);

    expect(await site.get('/last/abc')).toMatchObject({ status: 200, body: { output: 'c' } });
  });

  it('[8.2] Clients share batches, and each gets its own stream', async () => {
    const site = await listen(metadata);
    const texts = Array.from({ length: 50 }, (_, n) => `text ${n}`);

    const replies = await Promise.all(
      texts.map((text, n) => site.get(n % 2 ? `/letters/${text}?end=` : `/events/${text}`)),
    );

    const letters = replies.map(({ body }, n) =>
      n % 2
        ? body
        : eventsIn(body)
            .map((data) => (JSON.parse(String(data)) as { output: string }).output)
            .join(''),
    );
    expect(letters).toEqual(texts);
    expect(generators.begun).toBeLessThan(50);
  });

  it.each(['events', 'letters'])(
    '[8.2] A stream and its work end when the client leaves: %s',
    async (path) => {
      const site = await listen(metadata);
      const responses = await Promise.all([
        open(site, `/${path}/forever`),
        open(site, `/${path}/forever`),
      ]);
      await Promise.all(
        responses.map(async (response) => {
          await once(response, 'data');
        }),
      );

      responses.forEach((response) => response.destroy());
      await until(() => generators.ended === generators.begun);

      expect(await site.get('/letters/abc')).toMatchObject({ status: 200, body: 'a\nb\nc\n' });
    },
  );

  it.each(['events', 'letters'])(
    '[8.2] The streams of others go on when one client leaves: %s',
    async (path) => {
      const site = await listen(metadata);
      const leaving = await open(site, `/${path}/forever`);
      const staying = await open(site, `/${path}/forever`);
      await Promise.all([once(leaving, 'data'), once(staying, 'data')]);

      leaving.destroy();
      for (let pieces = 0; pieces < 20; pieces++) {
        await once(staying, 'data');
      }

      expect(generators.begun).toBeGreaterThan(generators.ended);
      staying.destroy();
      await until(() => generators.ended === generators.begun);
    },
  );

  it.each(['events', 'letters'])(
    '[9.3] [8.4] Streams do not keep an application from closing: %s',
    async (path) => {
      const servings = [{ ...speller, shutdown: { timeout: 50 } }];
      const site = await listen({ ...metadata, imports: [ServingModule.forRoot({ servings })] });
      const response = await open(site, `/${path}/forever`);
      const ended = new Promise((resolve) => response.on('error', () => {}).on('close', resolve));
      await once(response, 'data');

      await site.app.close();
      await ended;

      expect(generators).toEqual({ begun: 1, ended: 1 });
    },
  );

  it.each(['events', 'letters', 'last'])(
    '[6.1] [8.2] A stream that is refused answers with the status of the error: %s',
    async (path) => {
      const site = await listen(metadata);

      expect(await site.get(`/${path}/refused`)).toMatchObject({
        status: 400,
        body: { statusCode: 400, message: 'This text is refused' },
      });
      expect(generators.begun).toBe(0);
    },
  );

  it.each(['letters', 'last'])(
    '[6.1] [8.2] A stream that fails before its first event answers with the status of the error: %s',
    async (path) => {
      const site = await listen(metadata);

      const { status, body } = await site.get(`/${path}/broken`);

      expect(status).toBe(500);
      expect(JSON.stringify(body)).not.toContain('no memory');
    },
  );

  it('[6.1] [8.2] A stream that fails later sends an error event with a hidden message', async () => {
    const site = await listen(metadata);

    const { status, body } = await site.get('/events/half');

    expect(status).toBe(200);
    expect(eventsIn(body)).toEqual([
      ...['h', 'a', 'l'].map((output) => JSON.stringify({ output })),
      'Internal Server Error',
    ]);
  });

  it('[6.1] [8.2] A stream that fails later breaks off the answer of a handler that generates', async () => {
    const site = await listen(metadata);

    await expect(site.get('/letters/half')).rejects.toThrow();
    expect(await site.get('/letters/abc')).toMatchObject({ status: 200 });
  });
});

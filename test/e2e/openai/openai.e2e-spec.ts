import { once } from 'node:events';
import { request as httpRequest } from 'node:http';
import { gzipSync } from 'node:zlib';
import { describe, expect, it } from '@jest/globals';
import {
  Controller,
  Get,
  type INestApplication,
  NotFoundException,
  Post,
  Body,
} from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { map } from 'rxjs';
import {
  ApiKeyGuard,
  defineServing,
  getServingToken,
  type ServingDefinition,
  ServingModule,
  type ServingOf,
  type ServingOptions,
  ServingService,
} from 'nestjs-serving';
import { OpenAIModule, type OpenAIOptions } from 'nestjs-serving/openai';
import { until } from '../../fixtures/async/streams.js';
import { HeldFunction } from '../../fixtures/batching/held-function.js';
import { describeOnPlatforms, type Site } from '../../fixtures/partitions/platforms.js';
import { answers, embedder, reranker, strict } from '../../fixtures/tasks/tiny-models.js';

const models = { 'my-org/embedder': embedder, strict, reranker };

interface Embeddings {
  readonly data: readonly { readonly index: number; readonly embedding: unknown }[];
  readonly model: string;
  readonly usage: { readonly prompt_tokens: number; readonly total_tokens: number };
}

/** A serving of a test with the replies of an embedder, whose batches the test ends. */
function heldEmbedder(options: Partial<ServingOptions> = {}) {
  const held = new HeldFunction<{ readonly text: string }>();
  const { useFactory } = held;
  const definition = defineServing({
    name: 'held',
    model: { useFactory },
    batchSize: 2,
    ...options,
  });
  return { held, definition: definition as ServingDefinition };
}

const embed = async (site: Site, body: object): Promise<Embeddings> => {
  const reply = await site.post('/v1/embeddings', { model: 'my-org/embedder', ...body });
  expect(reply.status).toBe(200);
  return reply.body as Embeddings;
};

const vectorOf = (text: string) =>
  Float32Array.from({ length: 1024 }, (_, i) => Math.sin(Number(text) + i));

const ignore = (): void => {};
const silent = { log: ignore, warn: ignore, error: ignore };

const anEmbedding = { vector: Float32Array.of(1), tokens: 1 };

@Controller('v1')
class OtherController {
  @Get('cats/:id')
  cat(): never {
    throw new NotFoundException('There is no such cat');
  }

  @Post('other')
  other(@Body() body: unknown): unknown {
    return body;
  }
}

describeOnPlatforms("OpenAI's API", (listen) => {
  const start = (
    options: Partial<OpenAIOptions> & { readonly path?: string } = {},
    {
      servings = [embedder, strict, reranker],
      configure,
    }: {
      readonly servings?: readonly ServingDefinition[];
      readonly configure?: (app: INestApplication) => unknown;
    } = {},
  ): Promise<Site> =>
    listen(
      {
        imports: [
          ServingModule.forRoot({ servings }),
          OpenAIModule.forRoot({ models, guards: [], ...options }),
        ],
        controllers: [OtherController],
      },
      { configure },
    );

  const startHeld = async (options: Partial<ServingOptions> = {}) => {
    const { held, definition } = heldEmbedder(options);
    const site = await start(
      { models: { held: { serving: 'held', task: 'text-embedding' } } },
      { servings: [definition] },
    );
    const serving = site.app.get(ServingService).get('held');
    return { held, site, serving };
  };

  it('[23.20] Two doors with paths of their own have their own models and guards', async () => {
    const doors = [
      OpenAIModule.forRoot({ path: 'open', guards: [], models: { strict } }),
      OpenAIModule.forRoot({ path: 'closed', guards: [new ApiKeyGuard('key')], models }),
    ];
    const site = await listen({
      imports: [ServingModule.forRoot({ servings: [embedder, strict, reranker] }), ...doors],
    });
    const call = { model: 'my-org/embedder', input: 'a' };

    expect((await site.post('/open/v1/embeddings', call)).status).toBe(404);
    expect((await site.post('/closed/v1/embeddings', call)).status).toBe(401);
    expect((await site.post('/closed/v1/embeddings', call, { 'x-api-key': 'key' })).status).toBe(
      200,
    );
    expect((await site.post('/open/v1/embeddings', { ...call, model: 'strict' })).status).toBe(200);
  });

  it('[23.1] It lists its models, and describes one whose id has a slash', async () => {
    const site = await start();
    const description = {
      id: 'my-org/embedder',
      object: 'model',
      created: expect.any(Number),
      owned_by: 'nestjs-serving',
    };

    const { body, headers } = await site.get('/v1/models');
    expect(body).toMatchObject({ object: 'list', data: [description, { id: 'strict' }, {}] });
    expect(headers.get('content-type')).toBe('application/json; charset=utf-8');
    expect((await site.get('/v1/models/my-org%2Fembedder')).body).toEqual(description);
    expect((await site.get('/v1/models/nix')).body).toEqual({
      error: {
        message: 'There is no model "nix"; the models are "my-org/embedder", "strict", "reranker"',
        type: 'invalid_request_error',
        param: 'model',
        code: 'model_not_found',
      },
    });
  });

  it('[23.2] The vectors of texts are those of Python in their order, as numbers and in base64', async () => {
    const site = await start();
    const input = answers.sentences;
    const floats = await embed(site, { input, user: 'me', store: true, dimensions: null });
    const base64 = await embed(site, { input, encoding_format: 'base64' });
    const vectors = floats.data.map(({ embedding }) => embedding as readonly number[]);

    expect(floats).toMatchObject({ object: 'list', model: 'my-org/embedder' });
    expect(floats.data.map(({ index }) => index)).toEqual([...input.keys()]);
    const expected = answers.embeddings['mean unit']!;
    const apart = expected.flatMap((row, i) => row.map((x, j) => Math.abs(x - vectors[i]![j]!)));
    expect(Math.max(...apart)).toBeLessThan(1e-5);
    expect(base64.data.map(({ embedding }) => floatsIn(embedding as string))).toEqual(vectors);
    expect(floats.usage.prompt_tokens).toBeGreaterThan(input.length);
    expect(floats.usage).toEqual({
      prompt_tokens: floats.usage.prompt_tokens,
      total_tokens: floats.usage.prompt_tokens,
    });
  });

  it('[23.2] [FZ2] A reply of many vectors, which is written in turns, is whole', async () => {
    const wide = {
      name: 'wide',
      model: {
        useFactory: () => (rows: readonly { text: string }[]) =>
          rows.map(({ text }) => ({ vector: vectorOf(text), tokens: 1 })),
      },
    };
    const site = await start(
      { models: { wide: { serving: 'wide', task: 'text-embedding' } } },
      { servings: [wide] },
    );
    const input = Array.from({ length: 100 }, (_, i) => `${i}`);

    const { status, headers, body } = await site.post('/v1/embeddings', { model: 'wide', input });

    expect([status, headers.get('content-type')]).toEqual([200, 'application/json; charset=utf-8']);
    expect(Number(headers.get('content-length'))).toBeGreaterThan(2 ** 20);
    expect((body as Embeddings).data).toEqual(
      input.map((text, index) => ({
        object: 'embedding',
        index,
        embedding: [...vectorOf(text)],
      })),
    );
    expect((body as Embeddings).usage).toEqual({ prompt_tokens: 100, total_tokens: 100 });
  });

  it('[23.2] A request may ask for fewer dimensions, and for a prompt by input_type', async () => {
    const site = await start();
    const [text] = answers.sentences;
    const short = await embed(site, { input: text, dimensions: 8 });
    const prompted = await embed(site, { input: text, input_type: 'query' });
    const written = await embed(site, { input: `query: ${text}` });

    expect(short.data[0]!.embedding).toHaveLength(8);
    expect(prompted).toEqual(written);
    const refused = await site.post('/v1/embeddings', {
      model: 'my-org/embedder',
      input: text,
      input_type: 'search',
    });
    expect(refused).toMatchObject({
      status: 400,
      body: { error: { message: expect.stringContaining('its prompts: query, document') } },
    });
  });

  it.each<[object, number, string | null, string]>([
    [{ model: undefined }, 400, 'model', '"model" is undefined, and must be'],
    [{ model: 'nix' }, 404, 'model', 'There is no model "nix"'],
    [{ model: 'reranker' }, 400, 'model', 'The model "reranker" answers /v1/rerank, and not'],
    [{ input: undefined }, 400, 'input', '"input" is undefined; give a list of at least one text'],
    [{ input: '' }, 400, 'input', '"input" is ""; give a text that is not empty'],
    [{ input: [] }, 400, 'input', '"input" is []; give a list'],
    [{ input: ['a', ''] }, 400, 'input[1]', '"input[1]" is ""'],
    [{ input: ['a', { text: 'b' }] }, 400, 'input[1]', 'give a text'],
    [{ input: [1, 2, 3] }, 400, 'input[0]', "of another model's tokenizer"],
    [{ input: [[1, 2], [3]] }, 400, 'input[0]', "of another model's tokenizer"],
    [{ input: Array(5).fill('a') }, 400, 'input', 'has 5 entries, and this model takes at most 4'],
    [{ encoding_format: 'int8' }, 400, 'encoding_format', "allowed is 'float' or 'base64'"],
    [{ dimensions: 0 }, 400, 'dimensions', 'allowed is a whole number from 1 on'],
    [{ dimensions: '8' }, 400, 'dimensions', 'allowed is a whole number from 1 on'],
    [
      { dimensions: 9 },
      400,
      'dimensions',
      'gives vectors of 8 or 32, and a call asks for 9 dimensions',
    ],
    [{ input_type: 1 }, 400, 'input_type', "the name of one of the model's prompts"],
  ])(
    'A request for embeddings with %j is refused with %d',
    async (part, status, param, message) => {
      const site = await start({ inputs: 4 });
      const body = { model: 'my-org/embedder', input: 'a', ...part };

      expect(await site.post('/v1/embeddings', body)).toMatchObject({
        status,
        body: {
          error: {
            message: expect.stringContaining(message),
            type: 'invalid_request_error',
            param,
          },
        },
      });
    },
  );

  it('[23.3] A text that is too long is refused with the code that clients look for', async () => {
    const site = await start();
    const body = { model: 'strict', input: ['a', 'a word '.repeat(100)] };

    expect(await site.post('/v1/embeddings', body)).toMatchObject({
      status: 400,
      body: {
        error: { message: expect.stringContaining('tokens'), code: 'context_length_exceeded' },
      },
    });
  });

  it('[23.1] It ranks documents as Python does, for clients of both versions of Cohere', async () => {
    const site = await start();
    const { query, documents, scores } = answers;
    const body = { model: 'reranker', query, documents };
    const order = [...scores.keys()].toSorted((a, b) => scores[b]! - scores[a]!);
    const ranked = await site.app
      .get<ServingOf<typeof reranker>>(getServingToken('reranker'))
      .batchedRun({ query, documents });
    const tokens = ranked.reduce((sum, each) => sum + each.tokens, 0);

    for (const version of ['1', '2']) {
      const { status, body: reply } = await site.post(`/v${version}/rerank`, body);
      expect(status).toBe(200);
      expect(reply).toEqual({
        id: expect.any(String),
        model: 'reranker',
        results: order.map((index) => ({
          index,
          relevance_score: expect.closeTo(1 / (1 + Math.exp(-scores[index]!)), 5),
        })),
        meta: { api_version: { version }, tokens: { input_tokens: tokens } },
        usage: { prompt_tokens: tokens, total_tokens: tokens },
      });
    }
    const objects = documents.map((text) => ({ text, source: 'mine' }));
    const more = { documents: objects, top_n: 2, return_documents: true };
    expect((await site.post('/v1/rerank', { ...body, ...more })).body).toMatchObject({
      results: order.slice(0, 2).map((index) => ({ index, document: { text: documents[index] } })),
      usage: { total_tokens: tokens },
    });
  });

  it.each<[object, string, string]>([
    [{ query: undefined }, 'query', '"query" is missing'],
    [{ query: '' }, 'query', 'allowed is a text that is not empty'],
    [{ documents: undefined }, 'documents', 'give a list of at least one text'],
    [{ documents: ['a', 1] }, 'documents[1]', '"documents[1]" is 1; give a text'],
    [{ documents: [{ title: 'a' }] }, 'documents[0]', 'or { text }'],
    [{ documents: Array(5).fill('a') }, 'documents', 'takes at most 4 in a request'],
    [{ top_n: 0 }, 'top_n', 'allowed is a whole number from 1 on'],
    [{ return_documents: 1 }, 'return_documents', 'allowed is true or false'],
    [{ model: 'strict' }, 'model', 'The model "strict" answers /v1/embeddings, and not /v1/rerank'],
  ])('A request to rerank with %j is refused', async (part, param, message) => {
    const site = await start({ inputs: 4 });
    const body = { model: 'reranker', query: 'a', documents: ['a'], ...part };

    expect(await site.post('/v2/rerank', body)).toMatchObject({
      status: 400,
      body: { error: { message: expect.stringContaining(message), param } },
    });
  });

  it('[23.6] Bodies may be larger than parsers of the application allow, up to a limit', async () => {
    const site = await start({ bodyLimit: 400_000 });
    const input = Array.from({ length: 300 }, (_, i) => `${i} `.repeat(200));

    expect((await embed(site, { input })).data).toHaveLength(300);
    expect(await site.post('/v1/embeddings', { input: 'a'.repeat(400_000) })).toMatchObject({
      status: 413,
      body: { error: { message: expect.stringContaining('more than 400000 bytes') } },
    });
    const other = { text: 'a'.repeat(2_000_000) };
    expect((await site.post('/v1/other', other)).status).toBe(413);
  });

  it.each<[string, Record<string, string>, string | Uint8Array<ArrayBuffer>, number, string]>([
    ['no JSON', {}, '{"model"', 400, 'is not JSON'],
    ['no object', {}, '[1]', 400, 'must be an object'],
    ['nothing', {}, '', 400, 'is not JSON'],
    ['deep lists', {}, '['.repeat(100_000), 400, 'deeper than 32 levels'],
    ['many lists', {}, `[${'[],'.repeat(200_000)}[]]`, 400, 'more than 32768 lists and objects'],
    [
      'a compressed body',
      { 'content-encoding': 'gzip' },
      new Uint8Array(gzipSync('{}')),
      415,
      'without a content encoding',
    ],
  ])('A request with %s is refused', async (_, headers, body, status, message) => {
    const { app } = await start();
    const response = await fetch(`${await app.getUrl()}/v1/embeddings`, {
      method: 'POST',
      headers,
      body,
    });

    expect(response.status).toBe(status);
    expect(await response.json()).toMatchObject({
      error: { message: expect.stringContaining(message), type: 'invalid_request_error' },
    });
  });

  it('[23.6] Guards run before a body is read, and a key may come as OpenAI clients send it', async () => {
    const site = await start({ guards: [new ApiKeyGuard('secret')] });
    const { port } = new URL(await site.app.getUrl());
    const request = httpRequest({ port, method: 'POST', path: '/v1/embeddings' });
    request.on('error', () => {});
    request.write('{"model":'); // The body does not end.
    const [response] = (await once(request, 'response')) as [{ statusCode: number }];
    request.destroy();

    expect(response.statusCode).toBe(401);
    expect(await site.get('/v1/models')).toMatchObject({
      status: 401,
      body: { error: { message: expect.stringContaining('key'), code: 'invalid_api_key' } },
    });
    const { status } = await site.get('/v1/models', { authorization: 'Bearer secret' });
    expect(status).toBe(200);
  });

  it('[23.6] The path and the global prefix stand before its routes, whose bodies may be large', async () => {
    const site = await start(
      { path: 'openai' },
      { configure: (app) => app.setGlobalPrefix('api') },
    );
    const body = {
      model: 'my-org/embedder',
      input: Array.from({ length: 40 }, () => 'a'.repeat(5000)),
    };

    expect((await site.get('/api/openai/v1/models')).status).toBe(200);
    expect((await site.post('/api/openai/v1/embeddings', body)).status).toBe(200);
    expect((await site.get('/api/openai/v1/nix')).body).toMatchObject({
      error: { code: 'unknown_url' },
    });
    expect((await site.get('/v1/models')).status).toBe(404);
  });

  it('[23.3] Unknown paths are answered in the form of its errors, and other routes as before', async () => {
    const site = await start();

    expect(await site.post('/v1/images/generations', {})).toMatchObject({
      status: 404,
      body: {
        error: {
          message: 'This server does not have "POST /v1/images/generations"',
          type: 'invalid_request_error',
          code: 'unknown_url',
        },
      },
    });
    expect((await site.get('/v1/embeddings')).body).toMatchObject({
      error: { code: 'unknown_url' },
    });
    expect((await site.get('/v1/cats/7')).body).toMatchObject({ message: 'There is no such cat' });
    expect((await site.get('/v3/nix')).body).toMatchObject({ message: 'Cannot GET /v3/nix' });
    expect((await site.post('/v1/other', { a: 1 })).body).toEqual({ a: 1 });
  });

  it('[23.6] Interceptors of the application change no reply, and each is sent once', async () => {
    const errors: unknown[] = [];
    const site = await start(
      {},
      {
        configure: (app) => {
          app.useLogger({ ...silent, error: (...error: unknown[]) => errors.push(error) });
          app.useGlobalInterceptors({
            intercept: (_, next) => next.handle().pipe(map((data) => ({ data }))),
          });
        },
      },
    );
    const ranking = { model: 'reranker', query: 'a', documents: ['a'] };

    expect((await embed(site, { input: 'a' })).model).toBe('my-org/embedder');
    expect((await site.post('/v1/rerank', ranking)).status).toBe(200);
    expect((await site.post('/v2/rerank', ranking)).status).toBe(200);
    expect(errors).toEqual([]);
  });

  it('[23.3] A full queue is answered with 429, and with the time after which to try again', async () => {
    const { site, held, serving } = await startHeld({ batchSize: 1, queue: { maxRows: 1 } });
    serving.pause();
    const first = site.post('/v1/embeddings', { model: 'held', input: 'a' });
    await until(() => serving.queued === 1);
    const second = await site.post('/v1/embeddings', { model: 'held', input: 'b' });

    expect(second).toMatchObject({
      status: 429,
      body: {
        error: {
          message: 'Too Many Requests (SERVING_OVERLOADED)',
          type: 'rate_limit_exceeded',
          param: null,
          code: 'rate_limit_exceeded',
        },
      },
    });
    expect(Number(second.headers.get('retry-after'))).toBeGreaterThan(0);
    serving.resume();
    await until(() => held.batches.length === 1);
    held.next().finish([anEmbedding]);
    expect((await first).status).toBe(200);
  });

  it('[23.4] More texts than the queue has room for are refused for good', async () => {
    const { site } = await startHeld({ queue: { maxRows: 3 } });
    const input = ['a', 'b', 'c', 'd'];

    expect(await site.post('/v1/embeddings', { model: 'held', input })).toMatchObject({
      status: 400,
      body: { error: { message: expect.stringContaining('at most 3'), param: 'input' } },
    });
  });

  it('[23.3] A late call is answered with 504, and the client is told not to repeat it', async () => {
    const { site, serving } = await startHeld({ timeout: 1 });
    serving.pause();
    const { status, headers, body } = await site.post('/v1/embeddings', {
      model: 'held',
      input: 'a',
    });

    expect(status).toBe(504);
    expect(headers.get('x-should-retry')).toBe('false');
    expect(body).toMatchObject({ error: { code: 'SERVING_DEADLINE_EXCEEDED' } });
  });

  it('[23.3] A failure of the application shows none of its details', async () => {
    const { site, held, serving } = await startHeld();
    const failing = site.post('/v1/embeddings', { model: 'held', input: 'a' });
    await until(() => held.batches.length === 1);
    held.next().fail(new Error('The password is 1234'));

    const { status, body } = await failing;
    expect(status).toBe(500);
    expect(body).toEqual({
      error: {
        message: 'Internal Server Error (SERVING_BATCH_FAILED)',
        type: 'server_error',
        param: null,
        code: 'SERVING_BATCH_FAILED',
      },
    });
    serving.drain();
    expect(await site.post('/v1/embeddings', { model: 'held', input: 'a' })).toMatchObject({
      status: 503,
      body: { error: { message: 'Service Unavailable (SERVING_UNAVAILABLE)' } },
    });
  });

  it('[23.5] A client that leaves frees the places of all its texts', async () => {
    const { site, held, serving } = await startHeld();
    serving.pause();
    const { port } = new URL(await site.app.getUrl());
    const request = httpRequest({ port, method: 'POST', path: '/v1/embeddings' });
    request.on('error', () => {});
    request.end(JSON.stringify({ model: 'held', input: ['a', 'b', 'c', 'd', 'e'] }));
    await until(() => serving.queued === 5);
    serving.resume();
    await until(() => serving.queued === 3);
    request.destroy();

    await until(() => serving.queued === 0);
    held.next().finish([anEmbedding, anEmbedding]);
    await until(() => serving.counters()!.failed['SERVING_CANCELLED'] === 5);
    expect(held.batches).toEqual([]);
  });

  it('[23.5] The first text that fails cancels those that wait', async () => {
    const { site, held, serving } = await startHeld();
    serving.pause();
    const reply = site.post('/v1/embeddings', { model: 'held', input: ['a', 'b', 'c', 'd', 'e'] });
    await until(() => serving.queued === 5);
    serving.resume();
    await until(() => serving.queued === 3);
    held.next().finish([anEmbedding, new Error('The second text fails')]);

    expect((await reply).status).toBe(500);
    expect(serving.queued).toBe(0);
  });
});

describe("The boot with OpenAI's API", () => {
  const boot = (options: object, servings: readonly ServingDefinition[] = [plain]) =>
    Test.createTestingModule({
      imports: [
        ServingModule.forRoot({ servings }),
        OpenAIModule.forRoot({ guards: [], ...options } as unknown as OpenAIOptions),
      ],
    })
      .setLogger(silent)
      .compile()
      .then((module) => module.createNestApplication().init());
  const plain: ServingDefinition = { name: 'plain', model: { useFactory: () => (rows) => rows } };
  const offer = { serving: 'plain', task: 'rerank' };

  it.each<[object, string]>([
    [{}, 'option "models" is undefined; allowed is an object of at least one definition'],
    [{ models: {} }, 'option "models" is {}; allowed is'],
    [{ models: { a: plain } }, 'models.a is a definition of no task that these routes answer'],
    [{ models: { a: 'plain' } }, "{ serving: 'name', task: 'text-embedding' }"],
    [
      { models: { a: { serving: 'plain', task: 'chat' } } },
      'allowed is "text-embedding" or "rerank"',
    ],
    [
      { models: { a: { serving: 'plan', task: 'rerank' } } },
      'did you mean "plain"? registered are',
    ],
    [
      { models: { a: offer }, guards: undefined },
      'option "guards" is undefined; allowed is a list',
    ],
    [{ models: { a: offer }, inputs: 0 }, 'option "inputs" is 0; allowed is a whole number from 1'],
    [{ models: { a: offer }, bodyLimit: 2 ** 30 }, 'option "bodyLimit" is 1073741824'],
    [{ models: { a: offer }, tokenInput: true }, 'unknown option "tokenInput"'],
  ])('fails with the options %j', async (options, message) => {
    await expect(boot(options)).rejects.toMatchObject({
      name: 'InvalidServingError',
      message: expect.stringContaining(`OpenAIModule`),
    });
    await expect(boot(options)).rejects.toThrow(message);
  });

  it('[23.7] fails with a path that no client can call', () => {
    expect(() =>
      OpenAIModule.forRoot({ models: { offer }, guards: [], path: 'a b' } as never),
    ).toThrow('option "path" is "a b"');
  });

  it('[23.7] fails without ServingModule', async () => {
    const module = Test.createTestingModule({
      imports: [OpenAIModule.forRoot({ models: { embedder }, guards: [] })],
    }).setLogger(silent);
    const app = (await module.compile()).createNestApplication();

    await expect(app.init()).rejects.toThrow('import ServingModule.forRoot next to it');
  });

  it('[23.7] A copy of a definition with another name keeps its task', async () => {
    const copy = { ...embedder, name: 'copy' };
    const app = await boot({ models: { a: copy } }, [copy]);
    await app.close();
  });
});

function floatsIn(base64: string): readonly number[] {
  const bytes = Buffer.from(base64, 'base64');
  return Array.from({ length: bytes.length / 4 }, (_, i) => bytes.readFloatLE(4 * i));
}

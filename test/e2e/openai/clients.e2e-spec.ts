import { expect, it } from '@jest/globals';
import { type CanActivate, Controller, Get, Inject } from '@nestjs/common';
import {
  ApiKeyGuard,
  defineServing,
  type Serving,
  type ServingDefinition,
  ServingModule,
  ServingService,
} from 'nestjs-serving';
import { OpenAIModule } from 'nestjs-serving/openai';
import { until } from '../../fixtures/async/streams.js';
import { describeUnless } from '../../fixtures/describe-unless.js';
import {
  nodeClientPrints,
  openAIClientsMissing,
  pythonClientPrints,
} from '../../fixtures/http/openai-clients.js';
import { describeOnPlatforms } from '../../fixtures/partitions/platforms.js';
import {
  answers,
  caller,
  classifier,
  embedder,
  reranker,
  strict,
  visit,
  writer,
  written,
} from '../../fixtures/tasks/tiny-models.js';

const { embeddings, documents } = answers;

const [chat] = written.chats;
const { messages, decoded } = chat!;
/** The text of its answer's first 12 tokens, which are no end tokens. */
const chatText = decoded.slice(0, decoded.indexOf(' sha'));

/** Its queue has three places, and the tests pause it. */
const busy = (name: string, reply: (row: unknown) => unknown): ServingDefinition =>
  defineServing({
    name,
    model: { useFactory: () => (rows: unknown[]) => rows.map(reply) },
    batchSize: 1,
    queue: { maxRows: 3 },
  });
const busyEmbedder = busy('busy', () => ({ vector: Float32Array.of(1, 2), tokens: 1 }));
const busyReranker = busy('busy-reranker', () => [{ index: 0, score: 1 }]);

/** Counts requests. Before the second one the serving goes on, if a test has paused it. */
class Requests implements CanActivate {
  count = 0;
  paused: Serving | undefined;

  async canActivate(): Promise<true> {
    this.count++;
    const { paused } = this;
    if (this.count === 2 && paused) {
      paused.resume();
      await until(() => paused.queued === 0);
    }
    return true;
  }
}

@Controller()
class QueueController {
  constructor(@Inject(ServingService) private readonly servings: ServingService) {}

  /** Answers when calls wait. */
  @Get('queued')
  async queued(): Promise<void> {
    const both = ['busy', 'busy-reranker'].map((name) => this.servings.get(name));
    await until(() => both.some(({ queued }) => queued > 0));
  }
}

const numbers = (length: number): unknown => Array<unknown>(length).fill(expect.any(Number));
const unknownModel = expect.stringContaining('There is no model "nix"');

type Prints = (what: string, url: string, given?: string) => Promise<unknown>;
const ofNode =
  (script: string): Prints =>
  (what, url, ...given) =>
    nodeClientPrints(script, what, url, ...(given as string[]));
const python: Prints = (what, url, ...given) =>
  pythonClientPrints('openai_client.py', what, url, ...(given as string[]));

describeUnless(openAIClientsMissing, "Clients of OpenAI's API", () => {
  describeOnPlatforms('An application', (listen) => {
    const start = async () => {
      const requests = new Requests();
      const { app } = await listen({
        imports: [
          ServingModule.forRoot({
            servings: [
              embedder,
              strict,
              reranker,
              classifier,
              writer,
              caller,
              busyEmbedder,
              busyReranker,
            ],
          }),
          OpenAIModule.forRoot({
            models: {
              embedder,
              'my-org/embedder': embedder,
              strict,
              reranker,
              classifier,
              writer,
              caller,
              busy: { serving: busyEmbedder, task: 'text-embedding' },
              'busy-reranker': { serving: busyReranker, task: 'rerank' },
            },
            guards: [new ApiKeyGuard('secret'), requests],
          }),
        ],
        controllers: [QueueController],
      });
      const servings = app.get(ServingService);
      return { url: await app.getUrl(), requests, get: (name: string) => servings.get(name) };
    };

    it('[23.1] The client of OpenAI for Node works with it', async () => {
      const { url } = await start();
      const seen = (await nodeClientPrints('openai.mjs', 'calls', url)) as {
        readonly one: readonly number[];
      };

      expect(seen).toEqual({
        models: [
          'embedder',
          'my-org/embedder',
          'strict',
          'reranker',
          'classifier',
          'writer',
          'caller',
          'busy',
          'busy-reranker',
        ],
        model: 'my-org/embedder',
        one: numbers(32),
        float: seen.one,
        list: [
          [0, 32],
          [1, 32],
          [2, 32],
        ],
        short: 8,
        usage: { prompt_tokens: expect.any(Number), total_tokens: expect.any(Number) },
        errors: [
          {
            error: 'NotFoundError',
            status: 404,
            code: 'model_not_found',
            type: 'invalid_request_error',
            param: 'model',
            message: unknownModel,
          },
          expect.objectContaining({
            error: 'BadRequestError',
            param: 'input[0]',
            message: expect.stringContaining('send texts'),
          }),
          expect.objectContaining({ status: 400, code: 'context_length_exceeded' }),
          expect.objectContaining({
            status: 404,
            message: expect.stringContaining('does not have "GET /v1/files"'),
          }),
          expect.objectContaining({ error: 'AuthenticationError', code: 'invalid_api_key' }),
        ],
      });
      const expected = embeddings['mean unit']![0]!;
      expect(Math.hypot(...seen.one)).toBeCloseTo(Math.hypot(...expected), 5);
    });

    it('[23.1] The client of OpenAI for Python works with it', async () => {
      const { url } = await start();
      const seen = (await python('calls', url)) as { readonly one: readonly number[] };

      expect(seen).toEqual({
        models: expect.arrayContaining(['embedder', 'reranker']),
        one: numbers(32),
        float: seen.one,
        list: [
          [0, 32],
          [1, 32],
          [2, 32],
        ],
        short: 8,
        usage: expect.any(Number),
        errors: [
          ['NotFoundError', 404, 'model_not_found', 'model', unknownModel],
          ['BadRequestError', 400, null, 'input[0]', expect.stringContaining('send texts')],
          ['AuthenticationError', 401, 'invalid_api_key', null, expect.stringContaining('key')],
        ],
      });
    });

    it('[23.1] LangChain works with it', async () => {
      const { url, requests } = await start();

      expect(await nodeClientPrints('langchain.mjs', 'calls', url)).toEqual({
        one: numbers(32),
        many: Array(600).fill(32),
        short: 8,
        error: { status: 404, message: unknownModel },
      });
      expect(requests.count).toBe(5); // Two for 600 texts.
    });

    it('[23.1] The AI SDK works with it', async () => {
      const { url } = await start();

      expect(await nodeClientPrints('ai-sdk.mjs', 'calls', url)).toEqual({
        one: numbers(32),
        usage: { tokens: expect.any(Number) },
        many: [32, 32, 32],
        short: 8,
        error: { name: 'AI_APICallError', statusCode: 404, message: unknownModel },
      });
    });

    it('[23.1] Both clients of Cohere work with it', async () => {
      const { url } = await start();
      const result = { index: expect.any(Number), relevanceScore: expect.any(Number) };
      const document = { text: expect.any(String) };

      expect(documents.length).toBeGreaterThan(3);
      expect(await nodeClientPrints('cohere.mjs', 'calls', url)).toMatchObject({
        v1: {
          results: [
            { ...result, document },
            { ...result, document },
          ],
        },
        v2: { id: expect.any(String), results: [result, result, result] },
        top: 1,
        error: {
          name: 'NotFoundError',
          statusCode: 404,
          body: { error: { message: unknownModel } },
        },
      });
    });

    it('[23.8] The client of OpenAI for Node gets answers whole and in pieces', async () => {
      const { url } = await start();
      const seen = await nodeClientPrints('openai.mjs', 'chat', url, JSON.stringify(messages));

      const usage = {
        prompt_tokens: chat!.ids.length,
        completion_tokens: 12,
        total_tokens: chat!.ids.length + 12,
      };
      expect(seen).toEqual({
        text: chatText,
        reason: 'length',
        usage,
        logprobs: numbers(12),
        streamed: chatText,
        streamedReason: 'length',
        streamedUsage: usage,
        stopped: expect.objectContaining({
          finish_reason: 'stop',
          message: expect.objectContaining({ content: 'in' }),
        }),
        errors: [
          expect.objectContaining({ status: 400, param: 'n' }),
          expect.objectContaining({ status: 400, param: 'model' }),
          expect.objectContaining({ status: 400, code: 'invalid_value' }),
        ],
      });
    });

    it('[23.8] The client of OpenAI for Python gets answers whole and in pieces', async () => {
      const { url } = await start();

      expect(await python('chat', url, JSON.stringify(messages))).toEqual({
        text: chatText,
        reason: 'length',
        usage: 12,
        streamed: chatText,
        streamedUsage: 12,
        errors: [
          ['BadRequestError', 400, null, 'n', expect.any(String)],
          ['BadRequestError', 400, null, 'tools[0]', expect.any(String)],
        ],
      });
    });

    it('[23.8] LangChain and the AI SDK get answers whole and in pieces', async () => {
      const { url } = await start();
      const given = JSON.stringify(messages);

      expect(await nodeClientPrints('langchain.mjs', 'chat', url, given)).toEqual({
        text: chatText,
        usage: 12,
        streamed: chatText,
      });
      expect(await nodeClientPrints('ai-sdk.mjs', 'chat', url, given)).toEqual({
        text: chatText,
        finishReason: 'length',
        usage: 12,
        streamed: chatText,
      });
    });

    const called = [['travel', visit.value]];

    it('[23.10] Clients of OpenAI get formats and calls of tools', async () => {
      const { url } = await start();

      expect(await nodeClientPrints('openai.mjs', 'forms', url)).toEqual({
        parsed: visit.value,
        booked: [visit.value],
        streamed: expect.arrayContaining([visit.value]),
        again: 'length',
        completions: [0, 1],
      });
      expect(await python('forms', url)).toEqual({
        parsed: visit.value,
        called: [visit.value],
        response: visit.value,
        events: expect.arrayContaining(['response.completed', 'response.output_item.done']),
        completion: 16,
      });
    });

    it("[23.11] OpenAI's client gets responses whole and in pieces", async () => {
      const { url } = await start();
      expect(await nodeClientPrints('openai.mjs', 'responses', url)).toEqual({
        parsed: visit.value,
        called: [['function_call', visit.value]],
        events: [
          'response.created',
          'response.in_progress',
          'response.output_item.added',
          'response.function_call_arguments.delta',
          'response.function_call_arguments.done',
          'response.output_item.done',
          'response.completed',
        ],
        again: ['incomplete', { reason: 'max_output_tokens' }],
        isSame: true,
        plain: ['response', 'message', true],
        errors: ['previous_response_id', 'input[0]', 'model'].map((param) =>
          expect.objectContaining({ status: 400, param }),
        ),
      });
    });

    it('[23.10] LangChain and the AI SDK get formats and calls of tools', async () => {
      const { url } = await start();

      const ofLangChain = { schema: visit.value, tool: visit.value, called, streamed: called };
      expect(await nodeClientPrints('langchain.mjs', 'forms', url)).toEqual({
        chat: ofLangChain,
        responses: ofLangChain,
      });
      const ofSdk = {
        object: visit.value,
        streamedObject: visit.value,
        dated: ['day', 'code', 'id'],
        called,
        results: ['booked'],
        finishReason: 'tool-calls',
        streamed: [visit.value],
        steps: 2,
      };
      expect(await nodeClientPrints('ai-sdk.mjs', 'forms', url)).toEqual({
        responses: ofSdk,
        chat: ofSdk,
        compatible: ofSdk,
      });
    });

    it("[23.12] Clients of Cohere, Ollama and Hugging Face's endpoints embed texts", async () => {
      const { url } = await start();
      const documentsOfClient = ['A batch holds rows.', 'The sky is blue.', 'rows'];

      expect(await nodeClientPrints('cohere.mjs', 'embed', url)).toEqual({
        float: [32, 32, 32],
        base64: [128, 128, 128],
        texts: documentsOfClient,
        tokens: true,
        short: 8,
        error: 400,
      });
      expect(await nodeClientPrints('others.mjs', 'ollama', url)).toEqual({
        model: 'embedder',
        embeddings: [32, 32],
        one: 1,
        short: 8,
        error: expect.stringContaining('There is no model "nix"'),
        refused: expect.stringContaining('"truncate" is false, which this model cannot do'),
      });
      expect(await nodeClientPrints('others.mjs', 'huggingFace', url)).toEqual([32, 32]);
    });

    it.each<[string, string, Prints]>([
      ['OpenAI for Node', 'busy', ofNode('openai.mjs')],
      ['OpenAI for Python', 'busy', python],
      ['LangChain', 'busy', ofNode('langchain.mjs')],
      ['the AI SDK', 'busy', ofNode('ai-sdk.mjs')],
      ['Cohere', 'busy-reranker', ofNode('cohere.mjs')],
    ])('The client of %s tries again after a full queue', async (_, name, prints) => {
      const { url, requests, get } = await start();
      const serving = get(name);
      serving.pause();
      const before = [1, 2, 3].map(() => serving.batchedRun('a call of the application'));
      requests.paused = serving;

      expect(await prints('retry', url)).toBeGreaterThan(0);
      expect(requests.count).toBe(2);
      expect(serving.counters()!.failed['SERVING_OVERLOADED']).toBe(1);
      await Promise.all(before);
    });

    it('[23.3] A refusal has its status and its text in the client of OpenAI', async () => {
      const { url, get } = await start();
      const serving = get('busy');
      serving.drain();

      expect(await nodeClientPrints('openai.mjs', 'once', url)).toMatchObject({
        error: 'InternalServerError',
        status: 503,
        message: expect.stringContaining('Service Unavailable (SERVING_UNAVAILABLE)'),
      });
    });

    it.each<[string, string, Prints, number, string]>([
      ['OpenAI for Node', 'busy', ofNode('openai.mjs'), 3, 'APIUserAbortError'],
      ['OpenAI for Python', 'busy', python, 3, 'CancelledError'],
      ['the AI SDK', 'busy', ofNode('ai-sdk.mjs'), 3, 'AbortError'],
      ['Cohere', 'busy-reranker', ofNode('cohere.mjs'), 1, 'The user aborted a request'],
    ])(
      'The client of %s frees its places when it aborts',
      async (_, name, prints, calls, error) => {
        const { url, get } = await start();
        const serving = get(name);
        serving.pause();

        expect(await prints('abort', url)).toBe(error);
        await until(() => serving.queued === 0);
        expect(serving.counters()).toMatchObject({ failed: { SERVING_CANCELLED: calls } });
      },
    );
  });
});

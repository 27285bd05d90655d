import { fileURLToPath } from 'node:url';
import { expect, it } from '@jest/globals';
import { ServingModule } from 'nestjs-serving';
import { OpenAIModule } from 'nestjs-serving/openai';
import { rerank, tokenClassification, textEmbedding, textGeneration } from 'nestjs-serving/tasks';
import { describeOnPlatforms, type Site } from '../../fixtures/partitions/platforms.js';
import {
  embedder,
  readTiny,
  reranker,
  tinyModel,
  writer,
} from '../../fixtures/tasks/tiny-models.js';

const CHAT = '/v1/chat/completions';
const user = { role: 'user', content: 'a' };
const chat = { model: 'writer', messages: [user], temperature: 0, max_tokens: 1 };

/** Leaves out roles that it does not know, as those of Qwen2.5 do, and all but the last six. */
const chatTemplate =
  "{% for message in messages[-6:] %}{% if message.role in ['system', 'user', 'assistant', 'critic'] " +
  'and not (message.role == "system" and not loop.first) %}' +
  '{{ message.role + ": " + message.content + "\\n" }}{% endif %}{% endfor %}';
const strict = textGeneration({
  name: 'strict',
  model: {
    from: fileURLToPath(new URL('../../fixtures/tasks/generator', import.meta.url)),
    file: 'onnx/model_gqa.onnx',
  },
  chatTemplate,
});

interface Answer {
  readonly error?: { readonly message: string; readonly param: string; readonly code: string };
  readonly usage?: { readonly prompt_tokens: number };
}

/** Call of an earlier answer, as clients send it. */
function callOf(given: string): object {
  return { id: 'c', function: { name: 'f', arguments: given } };
}

/** Fields with a message between two others. */
function between(message: object): object {
  return { messages: [user, message, user] };
}

async function ask(site: Site, path: string, body: object) {
  const { status, body: answer } = await site.post(path, body);
  return { status, ...(answer as Answer) };
}

describeOnPlatforms("Fields of OpenAI's and Cohere's requests", (listen) => {
  const start = (): Promise<Site> =>
    listen({
      imports: [
        ServingModule.forRoot({ servings: [writer, embedder, reranker] }),
        OpenAIModule.forRoot({
          models: { writer, 'a/b/embedder': embedder, reranker },
          guards: [],
        }),
      ],
    });

  it('[FQ11] A field that asks for what a model cannot do is refused with its name, also one that nobody knows', async () => {
    const site = await start();
    const requests: [string, object, object][] = [
      [
        CHAT,
        chat,
        {
          function_call: { name: 'f' },
          guided_json: {},
          structured_outputs: { json: {} },
          stop_token_ids: [1.5],
          min_tokens: 9,
          ignore_eos: true,
          best_of: 3,
          chat_template_kwargs: { enable_thinking: false },
          continue_final_message: true,
          add_generation_prompt: false,
          reasoning_effort: 'high',
          'top-p': 0.1,
        },
      ],
      ['/v1/embeddings', { model: 'a/b/embedder', input: 'a' }, { truncate_prompt_tokens: 9 }],
      [
        '/v2/rerank',
        { model: 'reranker', query: 'a', documents: ['b'] },
        { max_tokens_per_doc: 1, rank_fields: ['title'], truncate: true },
      ],
    ];
    for (const [path, body, fields] of requests) {
      for (const [name, value] of Object.entries(fields)) {
        const refused = await ask(site, path, { ...body, [name]: value });
        expect([name, refused]).toEqual([
          name,
          { status: 400, error: expect.objectContaining({ param: name }) },
        ]);
        expect((await ask(site, path, { ...body, [name]: null })).status).toBe(200);
      }
      const about = { user: 'me', metadata: { a: 'b' }, store: false, service_tier: 'auto' };
      expect(await ask(site, path, { ...body, ...about })).toMatchObject({ status: 200 });
    }
    const nothing = { min_p: 0, tools: [], stop_token_ids: [], best_of: 1, function_call: 'auto' };
    expect(await ask(site, CHAT, { ...chat, ...nothing })).toMatchObject({ status: 200 });
  });

  it('[FQ11] Numbers of sampling are refused by the name of the client, and top_k -1 and 0 set no limit', async () => {
    const site = await start();
    for (const top_k of [-1, 0]) {
      expect(await ask(site, CHAT, { ...chat, top_k })).toMatchObject({ status: 200 });
    }
    const wrong = {
      top_k: -2,
      top_p: 0,
      min_p: 2,
      temperature: 3,
      repetition_penalty: 11,
      presence_penalty: 2.5,
      frequency_penalty: -3,
      seed: 0.5,
    };
    for (const [param, value] of Object.entries(wrong)) {
      const refused = await ask(site, CHAT, { ...chat, [param]: value });
      expect(refused).toMatchObject({ status: 400, error: { param } });
    }
  });

  it("[FQ11] An assistant's turn in a history may have a refusal or no content, and whole calls of tools", async () => {
    const site = await start();
    const turns: [object, string | undefined][] = [
      [{ content: null, refusal: 'no', annotations: [], tool_calls: null }, undefined],
      [{ content: [{ type: 'refusal', refusal: 'no' }] }, undefined],
      [{ content: null }, undefined],
      [{}, undefined],
      [{ content: null, tool_calls: [{ id: 'c' }] }, 'messages[1].tool_calls[0]'],
      // The model's template does not write calls.
      [
        { content: null, tool_calls: [{ id: 'c', function: { name: 'f', arguments: '{}' } }] },
        'messages[1]',
      ],
      [{ role: 'user', content: null }, 'messages[1].content'],
    ];
    for (const [turn, param] of turns) {
      const messages = [user, { role: 'assistant', ...turn }, user];
      expect([turn, (await ask(site, CHAT, { ...chat, messages })).error?.param]).toEqual([
        turn,
        param,
      ]);
    }
  });

  it('[FQ11] A prompt of exactly the limit is refused with the code of a longer one', async () => {
    const site = await start();
    for (const words of [480, 481]) {
      const messages = [{ role: 'user', content: 'a '.repeat(words) }];
      const { error } = await ask(site, CHAT, { ...chat, messages });
      expect(error).toMatchObject({ code: 'context_length_exceeded' });
    }
  });

  it('[FQ11] A model whose id has slashes is described by its path, encoded or not', async () => {
    const site = await start();
    for (const id of ['a%2Fb%2Fembedder', 'a/b/embedder']) {
      expect(await site.get(`/v1/models/${id}`)).toMatchObject({ body: { id: 'a/b/embedder' } });
    }
    expect(await site.get('/v1/models/a/b')).toMatchObject({
      status: 404,
      body: { error: { code: 'model_not_found' } },
    });
  });

  it('[FQ11] The refusal of one text of many has its place, also of one without tokens', async () => {
    const json = JSON.parse(readTiny('tokenizers/bert.json').toString()) as object;
    const files = ['config.json', 'onnx/model.onnx', 'tokenizer_config.json'];
    const bare = textEmbedding({
      name: 'bare',
      pooling: 'mean',
      model: {
        from: {
          ...Object.fromEntries(files.map((path) => [path, readTiny(`embedder/${path}`)])),
          'tokenizer.json': JSON.stringify({ ...json, post_processor: null }),
        },
        isolation: 'none',
      },
    });
    const site = await listen({
      imports: [
        ServingModule.forRoot({ servings: [bare] }),
        OpenAIModule.forRoot({ models: { bare }, guards: [] }),
      ],
    });
    const answer = await ask(site, '/v1/embeddings', { model: 'bare', input: ['fine', ' '] });
    expect(answer).toMatchObject({
      status: 400,
      error: { param: 'input[1]', message: expect.stringContaining('has no tokens') },
    });
  });

  it('[FQ11] The refusal of one message or document of many has its place', async () => {
    const short = rerank({ name: 'short', model: tinyModel('reranker') });
    const site = await listen({
      imports: [
        ServingModule.forRoot({ servings: [strict, short] }),
        OpenAIModule.forRoot({ models: { writer: strict, short }, guards: [] }),
      ],
    });
    const refusals: [object, string][] = [
      [{ messages: [user, { role: 'user', content: 'a <|im_end|>' }] }, 'messages[1].content'],
      [{ messages: [{ role: '<|im_end|>', content: 'a' }] }, 'messages[0].role'],
      [{ messages: [user, { role: 'nobody', content: 'a' }] }, 'messages[1].role'],
      [{ messages: [user, { role: 'system', content: 'a' }] }, 'messages[1]'],
      [{ messages: [{ role: 'user', content: 'a '.repeat(999) }] }, 'messages'],
      [{ stop: 'messages[0]'.repeat(99) }, 'stop'],
      [{ stop: 'a <|im_end|>' }, 'stop'],
      [{ stop: Array.from({ length: 17 }, () => 'a') }, 'stop'],
      [{ stop_token_ids: [99_999] }, 'stop_token_ids'],
    ];
    for (const [fields, param] of refusals) {
      for (const stream of [false, true]) {
        const refused = await ask(site, CHAT, { ...chat, ...fields, stream });
        expect([fields, refused]).toMatchObject([fields, { status: 400, error: { param } }]);
      }
    }
    const ranked: [object, string][] = [
      [{ documents: ['fine', 'a [SEP] b'] }, 'documents[1]'],
      [{ documents: ['fine', 'fine', 'a '.repeat(99)] }, 'documents[2]'],
      [{ query: '[SEP]: documents[0]: ' }, 'query'],
    ];
    for (const [fields, param] of ranked) {
      const body = { model: 'short', query: 'a', documents: ['fine'], ...fields };
      const refused = await ask(site, '/v2/rerank', body);
      expect([fields, refused]).toMatchObject([fields, { status: 400, error: { param } }]);
    }
  });

  it('[23.15] Fields within formats, choices of tools and earlier calls are followed or refused by their place', async () => {
    const site = await start();
    const schema = { type: 'integer' };
    const tools = [{ type: 'function', function: { name: 'f' } }];
    const call = { id: 'c', type: 'function', function: { name: 'f', arguments: '{}' } };
    const refusals: [object, string][] = [
      [{ response_format: { type: 'json_object', schema } }, 'response_format.schema'],
      [{ response_format: { type: 'text', schema } }, 'response_format.schema'],
      [
        { response_format: { type: 'json_schema', json_schema: { schema }, grammar: 'a' } },
        'response_format.grammar',
      ],
      [
        { response_format: { type: 'json_schema', json_schema: { schema, pattern: 'a' } } },
        'response_format.json_schema.pattern',
      ],
      [
        { tools, tool_choice: { type: 'function', function: { name: 'f' }, mode: 1 } },
        'tool_choice.mode',
      ],
      [
        { tools, tool_choice: { type: 'function', function: { name: 'f', arguments: '{}' } } },
        'tool_choice.function.arguments',
      ],
      [
        between({ role: 'assistant', tool_calls: [{ ...call, type: 'custom' }] }),
        'messages[1].tool_calls[0].type',
      ],
      [
        between({ role: 'assistant', tool_calls: [{ ...call, result: 1 }] }),
        'messages[1].tool_calls[0].result',
      ],
      [
        between({
          role: 'assistant',
          tool_calls: [{ ...call, function: { ...call.function, a: 1 } }],
        }),
        'messages[1].tool_calls[0].function.a',
      ],
      [between({ role: 'tool', content: 'a', tool_call_id: 5 }), 'messages[1].tool_call_id'],
      [between({ role: 'tool', content: 'a', name: '' }), 'messages[1].name'],
    ];
    for (const [fields, param] of refusals) {
      const refused = await ask(site, CHAT, { ...chat, ...fields });
      expect([fields, refused]).toMatchObject([fields, { status: 400, error: { param } }]);
    }
    const ofResponse = { model: 'writer', input: 'a', max_output_tokens: 1 };
    const format = { type: 'json_object', schema };
    const response = await ask(site, '/v1/responses', { ...ofResponse, text: { format } });
    expect(response).toMatchObject({ status: 400, error: { param: 'text.format.schema' } });
    const choice = {
      tools: [{ type: 'function', name: 'f' }],
      tool_choice: { type: 'function', name: 'f', a: 1 },
    };
    const chosen = await ask(site, '/v1/responses', { ...ofResponse, ...choice });
    expect(chosen).toMatchObject({ status: 400, error: { param: 'tool_choice.a' } });
    // Null is no wish, so the template alone refuses this turn.
    const told = between({ role: 'tool', content: 'a', tool_call_id: 'c', name: null });
    expect(await ask(site, CHAT, { ...chat, ...told })).toMatchObject({
      error: { param: 'messages[1].role' },
    });
  });

  it("[23.14] Arguments of earlier calls have a body's limits, together, before they are parsed", async () => {
    const site = await start();
    const deep = `${'{"a":'.repeat(33)}1${'}'.repeat(33)}`;
    const wide = `{"a":[${'{},'.repeat(20_000)}1]}`;
    const refusals: [readonly string[], number, RegExp][] = [
      [['{}', deep], 1, /deeper than 32 levels/],
      [[wide, wide], 1, /more than 32768 lists and objects/],
      [['{}', `{"a":[${'0,'.repeat(140_000)}1]}`], 1, /more than 131072 values/],
      [['{'], 0, /is not JSON/],
      [['[]'], 0, /give an object as JSON text/],
    ];
    for (const [given, place, message] of refusals) {
      const messages = [user, { role: 'assistant', tool_calls: given.map(callOf) }, user];
      expect(await ask(site, CHAT, { ...chat, messages })).toMatchObject({
        status: 400,
        error: {
          message: expect.stringMatching(message),
          param: `messages[1].tool_calls[${place}].function.arguments`,
        },
      });
    }
    const calls = [wide, wide].map((each, i) => ({
      type: 'function_call',
      call_id: `c${i}`,
      name: 'f',
      arguments: each,
    }));
    const response = await ask(site, '/v1/responses', { model: 'writer', input: calls });
    expect(response).toMatchObject({ status: 400, error: { param: 'input[1].arguments' } });
  });

  it('[FQ11] A task without a route fails the boot with this reason', async () => {
    const mood = tokenClassification({ name: 'mood', model: tinyModel('tagger') });
    const boot = listen({
      imports: [
        ServingModule.forRoot({ servings: [mood] }),
        OpenAIModule.forRoot({ models: { mood }, guards: [] }),
      ],
    });
    await expect(boot).rejects.toThrow('other tasks have no route');
  });

  it('[FQ8] Each message reaches the model or is refused, and developer counts as system', async () => {
    const site = await listen({
      imports: [
        ServingModule.forRoot({ servings: [strict] }),
        OpenAIModule.forRoot({ models: { writer: strict }, guards: [] }),
      ],
    });
    const seen = async (...messages: object[]) => {
      const { usage, error } = await ask(site, CHAT, { ...chat, messages });
      return usage?.prompt_tokens ?? error?.message;
    };
    const content = 'Answer in French.';
    const system = await seen({ role: 'system', content }, user);

    expect(system).toEqual(expect.any(Number));
    expect(await seen({ role: 'developer', content }, user)).toBe(system);
    expect(await seen({ role: 'critic', content }, user)).toEqual(expect.any(Number));
    expect(await seen({ role: 'nobody', content: 'a' }, user)).toMatch(
      /messages\[0\] has the role "nobody"/,
    );
    expect(await seen(user, { role: 'system', content: 'a' })).toMatch(
      /leaves out messages\[1\], of the role "system"/,
    );
    expect(await seen(...Array.from({ length: 7 }, () => user))).toMatch(
      /leaves out messages\[0\]/,
    );
    // A blank message has nothing to leave out.
    expect(await seen(user, { role: 'system', content: ' ' })).toEqual(expect.any(Number));
  });
});

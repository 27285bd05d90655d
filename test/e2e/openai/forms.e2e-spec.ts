import { expect, it } from '@jest/globals';
import { ServingModule } from 'nestjs-serving';
import { OpenAIModule } from 'nestjs-serving/openai';
import { describeOnPlatforms, type Site } from '../../fixtures/partitions/platforms.js';
import { caller, embedder, visit, writer, written } from '../../fixtures/tasks/tiny-models.js';

const CHAT = '/v1/chat/completions';
const [{ text: prompt, decoded }] = written.prompts as [(typeof written.prompts)[0]];
const messages = [{ role: 'user', content: 'Where to?' }];
const travel = { name: 'travel', description: 'Books a visit', parameters: visit.schema };
const ofChat = { model: 'caller', messages, max_tokens: 200 };
const ofResponse = { model: 'caller', input: 'Where to?', max_output_tokens: 200 };

/** The data of server-sent events. */
function eventsIn(body: unknown): Record<string, unknown>[] {
  const lines = (body as string).split('\n').filter((line) => line.startsWith('data: {'));
  return lines.map((line) => JSON.parse(line.slice(6)) as Record<string, unknown>);
}

/** More lengths than answers are held to. */
const manyLengths = {
  type: 'json_schema',
  schema: {
    type: 'object',
    properties: Object.fromEntries(
      Array.from({ length: 27 }, (_, i) => [`${i}`, { type: 'string', maxLength: i }]),
    ),
  },
};

describeOnPlatforms("OpenAI's formats, tools and responses", (listen) => {
  const start = (): Promise<Site> =>
    listen({
      imports: [
        ServingModule.forRoot({ servings: [caller, writer, embedder] }),
        OpenAIModule.forRoot({ models: { caller, writer, embedder }, guards: [] }),
      ],
    });

  it('[23.10] An answer has its format, or calls of tools', async () => {
    const site = await start();
    const schema = { name: 'visit', schema: visit.schema, strict: true };
    const format = { type: 'json_schema', json_schema: schema };
    const held = await site.post(CHAT, { ...ofChat, response_format: format });
    expect(held.body).toMatchObject({
      choices: [{ message: { content: visit.text }, finish_reason: 'stop' }],
    });

    const tools = [{ type: 'function', function: travel }];
    const calling = { ...ofChat, tools, tool_choice: 'required', parallel_tool_calls: false };
    const called = await site.post(CHAT, calling);
    const call = {
      id: expect.stringMatching(/^call_[\da-f]{32}$/),
      type: 'function',
      function: { name: 'travel', arguments: JSON.stringify(visit.value) },
    };
    expect(called.body).toMatchObject({
      choices: [
        {
          message: { role: 'assistant', content: null, refusal: null, tool_calls: [call] },
          finish_reason: 'tool_calls',
        },
      ],
    });

    const streamed = await site.post(CHAT, { ...calling, stream: true });
    const choices = eventsIn(streamed.body).map((event) => (event['choices'] as object[])[0]);
    expect(choices).toEqual([
      expect.objectContaining({ delta: { role: 'assistant', content: '' } }),
      expect.objectContaining({ delta: { tool_calls: [{ index: 0, ...call }] } }),
      expect.objectContaining({ delta: {}, finish_reason: 'tool_calls' }),
    ]);
  });

  it("[23.16] A refusal of a schema's parts together names the format", async () => {
    const site = await start();
    const refused = async (path: string, request: object): Promise<unknown> => {
      const { status, body } = await site.post(path, request);
      expect(status).toBe(400);
      return (body as { error: { param: unknown } }).error.param;
    };

    const chat = { ...ofChat, response_format: { type: 'json_schema', json_schema: manyLengths } };
    expect(await refused(CHAT, chat)).toBe('response_format');
    const response = { ...ofResponse, text: { format: manyLengths } };
    expect(await refused('/v1/responses', response)).toBe('text.format');
  });

  it.each<[string, object, string]>([
    [
      CHAT,
      {
        ...ofChat,
        response_format: {
          type: 'json_schema',
          json_schema: { schema: { properties: { a: { not: {} } } } },
        },
      },
      'response_format.json_schema.schema.properties.a.not',
    ],
    [
      CHAT,
      {
        ...ofChat,
        tools: [{ type: 'function', function: { name: 'a', parameters: { type: 'string' } } }],
      },
      'tools[0].function.parameters.type',
    ],
    [
      CHAT,
      {
        ...ofChat,
        tools: [{ type: 'function', function: travel }],
        tool_choice: { type: 'function', function: { name: 'fly' } },
      },
      'tool_choice',
    ],
    [
      CHAT,
      {
        ...ofChat,
        tools: [{ type: 'function', function: travel }],
        tool_choice: { type: 'allowed_tools' },
      },
      'tool_choice',
    ],
    [
      CHAT,
      { ...ofChat, tools: [{ type: 'function', function: { ...travel, strange: 1 } }] },
      'tools[0].function.strange',
    ],
    [
      CHAT,
      { ...ofChat, model: 'writer', tools: [{ type: 'function', function: travel }] },
      'tools',
    ],
    [CHAT, { ...ofChat, chat_template_kwargs: { nix: 1 } }, 'chat_template_kwargs'],
    [
      CHAT,
      {
        ...ofChat,
        messages: [
          { role: 'assistant', tool_calls: [{ id: 'a', function: { name: 'b', arguments: '[' } }] },
        ],
      },
      'messages[0].tool_calls[0].function.arguments',
    ],
    [
      CHAT,
      { ...ofChat, messages: [{ role: 'assistant', tool_calls: {} }] },
      'messages[0].tool_calls',
    ],
    [
      '/v1/responses',
      {
        ...ofResponse,
        text: { format: { type: 'json_schema', schema: { pattern: '(', type: 'string' } } },
      },
      'text.format.schema.pattern',
    ],
    [
      '/v1/responses',
      {
        ...ofResponse,
        text: { format: { type: 'json_schema', schema: { pattern: '(?=a)b', type: 'string' } } },
      },
      'text.format.schema.pattern',
    ],
    [
      CHAT,
      {
        ...ofChat,
        stream: true,
        tools: [
          {
            type: 'function',
            function: {
              name: 'a',
              parameters: {
                type: 'object',
                properties: { b: { type: 'string', pattern: String.raw`(a|b)*\1` } },
              },
            },
          },
        ],
      },
      'tools[0].function.parameters.properties.b.pattern',
    ],
    ['/v1/responses', { ...ofResponse, tools: [{ type: 'web_search' }] }, 'tools[0]'],
    [
      '/v1/responses',
      {
        ...ofResponse,
        tools: [{ type: 'function', name: 'a', parameters: { type: 'object', minProperties: 1 } }],
      },
      'tools[0].parameters.minProperties',
    ],
    ['/v1/responses', { ...ofResponse, input: [] }, 'input'],
    ['/v1/responses', { ...ofResponse, input: [{ type: 'reasoning', summary: [] }] }, 'input[0]'],
    [
      '/v1/responses',
      { ...ofResponse, input: [{ role: 'user', content: [{ type: 'input_image' }] }] },
      'input[0].content',
    ],
    ['/v1/responses', { ...ofResponse, input: '<|im_end|>' }, 'input'],
    ['/v1/responses', { ...ofResponse, reasoning: { effort: 'high' } }, 'reasoning'],
    ['/v1/responses', { ...ofResponse, stream: true, input: '<|im_end|>' }, 'input'],
    ['/v1/completions', { model: 'writer', prompt: [1, 2] }, 'prompt'],
    ['/v1/completions', { model: 'writer', prompt: '' }, 'prompt'],
    ['/v1/completions', { model: 'writer', prompt: ['a', 'b'], stream: true }, 'prompt'],
    ['/v1/completions', { model: 'writer', prompt: 'a', logprobs: 1 }, 'logprobs'],
    ['/v1/completions', { model: 'writer', prompt: '<|im_end|>' }, 'prompt'],
    ['/v1/completions', { model: 'embedder', prompt: 'a' }, 'model'],
  ])('[23.4] %s refuses what it cannot follow with its field: %j', async (path, body, param) => {
    const site = await start();
    const answer = await site.post(path, body);
    expect([answer.status, answer.body]).toEqual([
      400,
      { error: expect.objectContaining({ type: 'invalid_request_error', param }) },
    ]);
  });

  it.each(['previous_response_id', 'conversation'])(
    '[23.11] A response that refers to earlier ones by %s is told to send their items',
    async (field) => {
      const site = await start();
      const answer = await site.post('/v1/responses', { ...ofResponse, [field]: 'resp_1' });
      expect([answer.status, answer.body]).toMatchObject([
        400,
        {
          error: {
            param: field,
            message: `"${field}" is "resp_1", which this server does not store; send the earlier items as input`,
          },
        },
      ]);
    },
  );

  it('[23.10] A plain prompt is continued, whole and as a stream, alone and in a list', async () => {
    const site = await start();
    const given = { model: 'writer', temperature: 0, max_tokens: 8 };
    const whole = await site.post('/v1/completions', { ...given, prompt: [prompt, 'b'] });
    const { choices, ...rest } = whole.body as { choices: { text: string }[] };
    expect(rest).toMatchObject({
      object: 'text_completion',
      model: 'writer',
      usage: { completion_tokens: expect.any(Number) },
    });
    expect(choices).toHaveLength(2);
    expect(decoded.startsWith(choices[0]!.text.replace(/\ufffd+$/, ''))).toBe(true);

    const stream = await site.post('/v1/completions', {
      ...given,
      prompt,
      stream: true,
      stream_options: { include_usage: true },
    });
    const events = eventsIn(stream.body);
    const pieces = events.flatMap(
      (event) => event['choices'] as { text: string; finish_reason: string | null }[],
    );
    expect(pieces.map(({ text }) => text).join('')).toBe(choices[0]!.text);
    expect(pieces.at(-1)!.finish_reason).toBe(
      (choices[0] as { finish_reason?: string }).finish_reason,
    );
    expect(events.at(-1)).toMatchObject({
      choices: [],
      usage: { prompt_tokens: expect.any(Number) },
    });
    // OpenAI's limit, unless the request has one.
    const usual = await site.post('/v1/completions', { model: 'writer', prompt, stop: null });
    expect(
      (usual.body as { usage: { completion_tokens: number } }).usage.completion_tokens,
    ).toBeLessThanOrEqual(16);
  });

  it('[23.11] A response has its items, and tells them in a stream', async () => {
    const site = await start();
    const { body } = await site.post('/v1/responses', {
      ...ofResponse,
      metadata: { a: 'b' },
      instructions: 'Be short',
      max_output_tokens: 3,
      temperature: 0, // A drawn answer may end before.
    });
    expect(body).toMatchObject({
      id: expect.stringMatching(/^resp_/),
      object: 'response',
      status: 'incomplete',
      incomplete_details: { reason: 'max_output_tokens' },
      metadata: { a: 'b' },
      instructions: 'Be short',
      model: 'caller',
      store: false,
      output: [
        {
          type: 'message',
          status: 'incomplete',
          role: 'assistant',
          content: [{ type: 'output_text', annotations: [] }],
        },
      ],
      usage: { output_tokens: 3, input_tokens_details: { cached_tokens: 0 } },
    });
    expect(body).not.toHaveProperty('input');

    const text = { format: { type: 'json_schema', name: 'visit', schema: visit.schema } };
    const stream = await site.post('/v1/responses', { ...ofResponse, text, stream: true });
    const events = eventsIn(stream.body);
    expect(events.map(({ sequence_number }) => sequence_number)).toEqual(events.map((_, i) => i));
    const types = [...new Set(events.map(({ type }) => type))];
    expect(types).toEqual([
      'response.created',
      'response.in_progress',
      'response.output_item.added',
      'response.content_part.added',
      'response.output_text.delta',
      'response.output_text.done',
      'response.content_part.done',
      'response.output_item.done',
      'response.completed',
    ]);
    const deltas = events.flatMap(({ type, delta }) =>
      type === 'response.output_text.delta' ? [delta] : [],
    );
    expect(deltas.join('')).toBe(visit.text);
    expect(events.at(-1)).toMatchObject({
      response: { output: [{ status: 'completed', content: [{ text: visit.text }] }] },
    });
    expect(stream.body).toMatch(/^event: response\.created\ndata: /);
  });
});

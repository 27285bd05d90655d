import { expect, it } from '@jest/globals';
import { defineServing, type SequenceEnd, type SequenceModel, ServingModule } from 'nestjs-serving';
import { OpenAIModule } from 'nestjs-serving/openai';
import { until } from '../../fixtures/async/streams.js';
import { describeOnPlatforms, type Site } from '../../fixtures/partitions/platforms.js';
import { embedder, writer, written } from '../../fixtures/tasks/tiny-models.js';

const [{ messages, decoded, greedy: greedyTokens }] = written.chats as [(typeof written.chats)[0]];
const third = greedyTokens[2]!;
/** The text of its answer's first 12 tokens, which are no end tokens. */
const text = decoded.slice(0, decoded.indexOf(' sha'));

const PATH = '/v1/chat/completions';
const greedy = { model: 'writer', messages, temperature: 0, max_tokens: 12 };

/** The data of server-sent events; the last one is no JSON. */
function eventsIn(body: unknown): { events: Record<string, unknown>[]; end: string | undefined } {
  const lines = (body as string).split('\n\n').filter((line) => line !== '');
  const data = lines.map((line) => line.replace(/^data: /, ''));
  const end = data.at(-1)?.startsWith('{') ? undefined : data.pop();
  return { events: data.map((each) => JSON.parse(each)), end };
}

/** Writes for ever, or fails after its first piece. */
function slowWriter(fails: boolean) {
  const ends: SequenceEnd[] = [];
  const model: SequenceModel<unknown, { text: string; tokens: number[] }, object> = {
    start: (rows) => rows.map(() => ({ steps: 0 })),
    step: (states) =>
      states.map((state) => {
        const own = state as { steps: number };
        own.steps++;
        return fails && own.steps > 1 ? new Error('secret reason') : { text: 'a', tokens: [1] };
      }),
    end: (_, reason) => void ends.push(reason),
  };
  const serving = defineServing({
    name: 'slow',
    model: { useFactory: () => model, sequence: {} },
    batchSize: 1,
    preprocess: (input: unknown) => ({ batch: input }),
  });
  return { ends, serving };
}

describeOnPlatforms("OpenAI's chat", (listen) => {
  const start = (): Promise<Site> =>
    listen({
      imports: [
        ServingModule.forRoot({ servings: [writer, embedder] }),
        OpenAIModule.forRoot({ models: { writer, embedder }, guards: [] }),
      ],
    });

  it('[23.8] An answer has its text, its reason and its usage', async () => {
    const site = await start();
    const { status, body } = await site.post(PATH, greedy);

    expect(status).toBe(200);
    expect(body).toEqual({
      id: expect.stringMatching(/^chatcmpl-/),
      object: 'chat.completion',
      created: expect.any(Number),
      model: 'writer',
      choices: [
        {
          index: 0,
          message: { role: 'assistant', content: text, refusal: null },
          logprobs: null,
          finish_reason: 'length',
        },
      ],
      usage: { prompt_tokens: 46, completion_tokens: 12, total_tokens: 58 },
    });
  });

  it('[23.8] A stream has the same text in chunks, and the usage if asked', async () => {
    const site = await start();
    const [plain, whole] = await Promise.all([
      site.post(PATH, { ...greedy, stream: true }),
      site.post(PATH, { ...greedy, stream: true, stream_options: { include_usage: true } }),
    ]);

    expect(plain.headers.get('content-type')).toBe('text/event-stream; charset=utf-8');
    const { events, end } = eventsIn(whole.body);
    const choices = events.map((event) => (event['choices'] as Record<string, unknown>[])[0]);
    expect(end).toBe('[DONE]');
    expect(events.every(({ object }) => object === 'chat.completion.chunk')).toBe(true);
    expect(new Set(events.map(({ id }) => id)).size).toBe(1);
    expect(choices[0]).toMatchObject({ delta: { role: 'assistant', content: '' } });
    expect(
      choices.map((choice) => (choice?.['delta'] as { content?: string })?.content ?? '').join(''),
    ).toBe(text);
    expect(choices.at(-2)).toMatchObject({ delta: {}, finish_reason: 'length' });
    expect(events.at(-1)).toMatchObject({ choices: [], usage: { completion_tokens: 12 } });
    expect(eventsIn(plain.body).events.at(-1)).toMatchObject({
      choices: [{ finish_reason: 'length' }],
    });
  });

  it('[23.8] Options of a request reach the model', async () => {
    const site = await start();
    const answerTo = async (more: object) => {
      const { body } = await site.post(PATH, { ...greedy, ...more });
      return (body as { choices: Record<string, unknown>[] }).choices[0]!;
    };
    const hot = { temperature: 1.5, max_completion_tokens: 20, max_tokens: undefined };

    expect(await answerTo({ stop: 'W' })).toMatchObject({
      message: { content: 'in' },
      finish_reason: 'stop',
    });
    // Its third token, which is neither special nor an end of the model.
    expect(await answerTo({ stop_token_ids: [third] })).toMatchObject({
      message: { content: expect.stringMatching(/^.{1,6}$/) },
      finish_reason: 'stop',
    });
    expect(await answerTo({ ...hot, seed: 7 })).toEqual(await answerTo({ ...hot, seed: 7 }));
    expect(await answerTo({ ...hot, top_k: 1 })).toMatchObject({
      message: { content: expect.stringContaining(text.slice(0, 12)) },
    });
    expect(await answerTo({ ...hot, top_p: 1e-9 })).toMatchObject({
      message: { content: expect.stringContaining(text.slice(0, 12)) },
    });
    expect(await answerTo({ repetition_penalty: 1.3 })).not.toMatchObject({
      message: { content: text },
    });
    const { logprobs } = (await answerTo({ logprobs: true })) as {
      logprobs: { content: { token: string; logprob: number }[] };
    };
    expect(logprobs.content).toHaveLength(12);
    expect(logprobs.content.map(({ token }) => token).join('')).toBe(text);
    expect(logprobs.content.every(({ logprob }) => logprob < 0)).toBe(true);
  });

  it('[23.4] What the model cannot do is refused with its field', async () => {
    const site = await start();
    const refused: [object, string][] = [
      [{ n: 2 }, 'n'],
      [{ tools: [{ type: 'function' }] }, 'tools[0].function'],
      [{ tools: [{ type: 'custom', custom: { name: 'a' } }] }, 'tools[0]'],
      [{ tool_choice: 'required' }, 'tool_choice'],
      [{ tools: [{ type: 'function', function: { name: 'a' } }] }, 'tools'],
      [{ response_format: { type: 'json_schema' } }, 'response_format'],
      [{ response_format: { type: 'grammar' } }, 'response_format'],
      [{ logit_bias: { 5: 1 } }, 'logit_bias'],
      [{ presence_penalty: 3 }, 'presence_penalty'],
      [{ chat_template_kwargs: { enable_thinking: false } }, 'chat_template_kwargs'],
      [{ logprobs: true, top_logprobs: 2 }, 'top_logprobs'],
      [{ messages: [] }, 'messages'],
      [{ messages: ['a'] }, 'messages[0]'],
      [{ messages: [{ role: 'user', content: [{ type: 'image_url' }] }] }, 'messages[0].content'],
      [{ stop: [1] }, 'stop'],
      [{ stream: 'yes' }, 'stream'],
      [{ model: 'embedder' }, 'model'],
      [{ temperature: 3 }, 'temperature'],
      // The serving refuses this, also before a stream begins.
      [
        { stream: true, messages: [{ role: 'user', content: '<|im_end|>' }] },
        'messages[0].content',
      ],
    ];
    for (const [more, param] of refused) {
      const { status, body } = await site.post(PATH, { ...greedy, ...more });
      expect([more, status, body]).toEqual([
        more,
        400,
        { error: expect.objectContaining({ type: 'invalid_request_error', param }) },
      ]);
    }
    const nothing = { n: 1, tools: [], response_format: { type: 'text' }, logit_bias: {} };
    expect((await site.post(PATH, { ...greedy, ...nothing, user: 'me' })).status).toBe(200);
    const parts = [{ type: 'text', text: messages[0]!.content }];
    const { body } = await site.post(PATH, {
      ...greedy,
      messages: [{ role: 'user', content: parts }],
    });
    expect(body).toMatchObject({ choices: [{ message: { content: text } }] });
  });

  const startSlow = async (fails: boolean) => {
    const { ends, serving } = slowWriter(fails);
    const site = await listen({
      imports: [
        ServingModule.forRoot({ servings: [serving] }),
        OpenAIModule.forRoot({
          models: { slow: { serving: 'slow', task: 'text-generation' } },
          guards: [],
        }),
      ],
    });
    return { ends, site };
  };

  it('[23.5] A client that leaves a stream ends its answer and frees its place', async () => {
    const { ends, site } = await startSlow(false);
    const leaving = new AbortController();
    const body = JSON.stringify({ model: 'slow', messages, stream: true });
    const response = await fetch(`${await site.app.getUrl()}${PATH}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body,
      signal: leaving.signal,
    });
    await response.body!.getReader().read();
    leaving.abort();

    await until(() => ends.length === 1);
    expect(ends).toEqual(['cancelled']);
  });

  it('[23.3] An error after the first piece is an event of the stream, without details', async () => {
    const { site } = await startSlow(true);
    const { status, body } = await site.post(PATH, { model: 'slow', messages, stream: true });

    expect(status).toBe(200);
    const { events, end } = eventsIn(body);
    expect(end).toBeUndefined();
    expect(events.at(-1)).toEqual({
      error: expect.objectContaining({ type: 'server_error', message: expect.any(String) }),
    });
    expect(body).not.toContain('secret reason');
  });
});

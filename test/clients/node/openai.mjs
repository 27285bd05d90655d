// The client of OpenAI for Node. Arguments: what to do, and the address of the server.
import OpenAI from 'openai';
import { zodFunction, zodResponseFormat, zodTextFormat } from 'openai/helpers/zod';
import * as z from 'zod';

const [, , what, url, given] = process.argv;
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'secret' });

const shown = async (call) => {
  try {
    return await call;
  } catch (error) {
    const { status, code, type, param, message } = error;
    return { error: error.constructor.name, status, code, type, param, message };
  }
};
const embed = (options, more) => client.embeddings.create({ model: 'embedder', ...options }, more);
const once = { maxRetries: 0 };

const steps = {
  async calls() {
    const models = await client.models.list();
    return {
      models: models.data.map(({ id }) => id),
      model: (await client.models.retrieve('my-org/embedder')).id,
      one: (await embed({ input: 'rows' })).data[0].embedding,
      float: (await embed({ input: 'rows', encoding_format: 'float' })).data[0].embedding,
      list: (await embed({ input: ['A batch holds rows.', 'rows', 'x'] })).data.map(
        ({ index, embedding }) => [index, embedding.length],
      ),
      short: (await embed({ input: 'rows', dimensions: 8 })).data[0].embedding.length,
      usage: (await embed({ input: ['rows', 'x'] })).usage,
      errors: [
        await shown(embed({ model: 'nix', input: 'a' })),
        await shown(embed({ input: [1, 2, 3] })),
        await shown(embed({ model: 'strict', input: 'a word '.repeat(100) })),
        await shown(client.files.list()),
        await shown(client.withOptions({ apiKey: 'wrong' }).embeddings.create({ input: 'a' })),
      ],
    };
  },

  async speech(path) {
    const { createReadStream } = await import('node:fs');
    const hear = (more) =>
      client.audio.transcriptions.create({ file: createReadStream(path), model: 'ear', ...more });
    const events = [];
    for await (const event of await hear({ stream: true })) {
      events.push(event);
    }
    const file = createReadStream(path);
    return {
      json: await hear({}),
      verbose: await hear({ response_format: 'verbose_json', language: 'fr' }),
      srt: await hear({ response_format: 'srt' }),
      words: await hear({
        response_format: 'verbose_json',
        timestamp_granularities: ['word', 'segment'],
        prompt: 'Names',
        temperature: 0.4,
      }),
      english: (await client.audio.translations.create({ file, model: 'ear' })).text,
      events,
      errors: [
        await shown(hear({ model: 'nix' })),
        await shown(hear({ temperature: 2 })),
        await shown(hear({ file: new File(['no audio'], 'a.wav') })),
      ],
    };
  },

  async chat(messages) {
    const options = { model: 'writer', messages, temperature: 0, max_tokens: 12 };
    const whole = await client.chat.completions.create({ ...options, logprobs: true });
    const events = [];
    const stream = await client.chat.completions.create({
      ...options,
      stream: true,
      stream_options: { include_usage: true },
    });
    for await (const chunk of stream) {
      events.push(chunk);
    }
    // A reader that stops ends its answer on the server.
    const left = await client.chat.completions.create({
      ...options,
      max_tokens: 400,
      stream: true,
    });
    for await (const { choices } of left) {
      if (choices[0].delta.content) {
        break;
      }
    }
    const refused = (more) => shown(client.chat.completions.create({ ...options, ...more }));
    return {
      text: whole.choices[0].message.content,
      reason: whole.choices[0].finish_reason,
      usage: whole.usage,
      logprobs: whole.choices[0].logprobs.content.map(({ logprob }) => logprob),
      streamed: events.map(({ choices }) => choices[0]?.delta.content ?? '').join(''),
      streamedReason: events.findLast(({ choices }) => choices[0]).choices[0].finish_reason,
      streamedUsage: events.at(-1).usage,
      stopped: (await client.chat.completions.create({ ...options, stop: ['W'] })).choices[0],
      errors: [
        await refused({ n: 2 }),
        await refused({ model: 'embedder' }),
        await refused({ stream: true, messages: [{ role: 'user', content: '<|im_end|>' }] }),
      ],
    };
  },

  async forms() {
    const visit = z.object({ city: z.literal('Paris'), days: z.number().int().min(3).max(3) });
    const messages = [{ role: 'user', content: 'Where to?' }];
    const options = { model: 'caller', messages, max_tokens: 200 };
    const { completions } = client.chat;
    const parsed = await completions.parse({
      ...options,
      response_format: zodResponseFormat(visit, 'visit'),
    });
    const booked = [];
    const runner = completions.runTools({
      ...options,
      tools: [
        zodFunction({ name: 'travel', parameters: visit, function: (own) => booked.push(own) }),
      ],
      tool_choice: { type: 'function', function: { name: 'travel' } },
    });
    await runner.done();
    const tool = {
      type: 'function',
      function: { name: 'travel', parameters: z.toJSONSchema(visit) },
    };
    const streamed = completions.stream({
      ...options,
      tools: [tool],
      tool_choice: 'required',
      parallel_tool_calls: false, // The model draws how many it makes otherwise.
    });
    const { tool_calls } = (await streamed.finalChatCompletion()).choices[0].message;
    const again = await completions.create({
      ...options,
      messages: [
        ...messages,
        { role: 'assistant', content: null, tool_calls },
        ...tool_calls.map(({ id }) => ({ role: 'tool', tool_call_id: id, content: 'booked' })),
      ],
      tools: [tool],
      max_tokens: 1,
      temperature: 0, // A drawn answer may end before.
    });
    const { choices } = await client.completions.create({ model: 'caller', prompt: ['a', 'b'] });
    return {
      parsed: parsed.choices[0].message.parsed,
      booked,
      streamed: tool_calls.map((call) => JSON.parse(call.function.arguments)),
      again: again.choices[0].finish_reason,
      completions: choices.map(({ index }) => index),
    };
  },

  async responses() {
    const visit = z.object({ city: z.literal('Paris'), days: z.number().int().min(3).max(3) });
    const options = { model: 'caller', input: 'Where to?', max_output_tokens: 200 };
    const { responses } = client;
    const plain = await responses.create({ ...options, instructions: 'Be short.', temperature: 0 });
    const parsed = await responses.parse({
      ...options,
      text: { format: zodTextFormat(visit, 'visit') },
    });
    const tool = {
      type: 'function',
      name: 'travel',
      parameters: z.toJSONSchema(visit),
      strict: true,
    };
    const tool_choice = { type: 'function', name: 'travel' };
    const stream = responses.stream({ ...options, tools: [tool], tool_choice });
    const events = [];
    for await (const { type } of stream) {
      events.push(type);
    }
    const { output } = await stream.finalResponse();
    const results = output.map(({ call_id }) => ({
      type: 'function_call_output',
      call_id,
      output: 'booked',
    }));
    const again = await responses.create({
      ...options,
      input: [{ role: 'user', content: 'Where to?' }, ...output, ...results],
      tools: [tool],
      max_output_tokens: 1,
      temperature: 0,
    });
    const text = responses.stream({ ...options, temperature: 0 });
    const pieces = [];
    for await (const event of text) {
      if (event.type === 'response.output_text.delta') {
        pieces.push(event.delta);
      }
    }
    return {
      parsed: parsed.output_parsed,
      called: output.map((item) => [item.type, JSON.parse(item.arguments)]),
      events,
      again: [again.status, again.incomplete_details],
      isSame:
        pieces.join('') === (await responses.create({ ...options, temperature: 0 })).output_text,
      plain: [plain.object, plain.output[0].type, plain.usage.output_tokens > 0],
      errors: [
        await shown(responses.create({ ...options, previous_response_id: 'resp_1' })),
        await shown(responses.create({ ...options, input: [{ type: 'item_reference', id: 'a' }] })),
        await shown(responses.create({ ...options, model: 'embedder' })),
      ],
    };
  },

  retry: async () => (await embed({ model: 'busy', input: 'a' })).data.length,

  once: () => shown(embed({ model: 'busy', input: 'a' }, once)),

  async abort() {
    const leaving = new AbortController();
    const call = embed(
      { model: 'busy', input: ['a', 'b', 'c'] },
      { ...once, signal: leaving.signal },
    );
    await fetch(`${url}/queued`);
    leaving.abort();
    return (await shown(call)).error;
  },
};

console.log(JSON.stringify(await steps[what](given && JSON.parse(given))));

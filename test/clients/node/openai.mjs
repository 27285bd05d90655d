// The client of OpenAI for Node. Arguments: what to do, and the address of the server.
import OpenAI from 'openai';

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
        await shown(client.responses.create({ model: 'embedder', input: 'hi' })),
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
      english: (await client.audio.translations.create({ file, model: 'ear' })).text,
      events,
      errors: [
        await shown(hear({ model: 'nix' })),
        await shown(hear({ prompt: 'names' })),
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

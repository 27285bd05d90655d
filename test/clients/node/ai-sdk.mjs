// The AI SDK. Arguments: what to do, and the address of the server.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { embed, embedMany } from 'ai';

const [, , what, url] = process.argv;
const provider = createOpenAICompatible({
  name: 'serving',
  baseURL: `${url}/v1`,
  apiKey: 'secret',
});
const model = (id) => provider.embeddingModel(id);

const steps = {
  async calls() {
    const { embedding, usage } = await embed({ model: model('embedder'), value: 'rows' });
    const many = await embedMany({ model: model('embedder'), values: ['A batch', 'rows', 'x'] });
    const short = await embed({
      model: model('embedder'),
      value: 'rows',
      providerOptions: { openaiCompatible: { dimensions: 8 } },
    });
    return {
      one: embedding,
      usage,
      many: many.embeddings.map(({ length }) => length),
      short: short.embedding.length,
      error: await embed({ model: model('nix'), value: 'a', maxRetries: 0 }).catch(
        ({ name, statusCode, message }) => ({ name, statusCode, message }),
      ),
    };
  },

  retry: async () => (await embed({ model: model('busy'), value: 'a' })).embedding.length,

  async abort() {
    const leaving = new AbortController();
    const values = ['a', 'b', 'c'];
    const call = embedMany({ model: model('busy'), values, abortSignal: leaving.signal });
    const failed = call.catch(({ name }) => name);
    await fetch(`${url}/queued`);
    leaving.abort();
    return failed;
  },
};

console.log(JSON.stringify(await steps[what]()));

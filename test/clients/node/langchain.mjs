// The embeddings of LangChain. Arguments: what to do, and the address of the server.
import { ChatOpenAI, OpenAIEmbeddings } from '@langchain/openai';

const [, , what, url, given] = process.argv;
const embeddings = (options) =>
  new OpenAIEmbeddings({
    model: 'embedder',
    apiKey: 'secret',
    configuration: { baseURL: `${url}/v1` },
    ...options,
  });

const steps = {
  async calls() {
    const documents = Array.from({ length: 600 }, (_, i) => `document\n${i}`);
    const failing = embeddings({ model: 'nix', maxRetries: 0 });
    return {
      one: await embeddings().embedQuery('rows'),
      many: (await embeddings().embedDocuments(documents)).map(({ length }) => length),
      short: (await embeddings({ dimensions: 8 }).embedQuery('rows')).length,
      error: await failing.embedQuery('a').catch(({ status, message }) => ({ status, message })),
    };
  },

  async chat(messages) {
    const chat = new ChatOpenAI({
      model: 'writer',
      apiKey: 'secret',
      temperature: 0,
      maxTokens: 12,
      configuration: { baseURL: `${url}/v1` },
    });
    const whole = await chat.invoke(messages);
    const pieces = [];
    for await (const piece of await chat.stream(messages)) {
      pieces.push(piece.content);
    }
    return {
      text: whole.content,
      usage: whole.usage_metadata.output_tokens,
      streamed: pieces.join(''),
    };
  },

  retry: async () => (await embeddings({ model: 'busy' }).embedDocuments(['a'])).length,
};

console.log(JSON.stringify(await steps[what](given && JSON.parse(given))));

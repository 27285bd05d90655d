// The embeddings of LangChain. Arguments: what to do, and the address of the server.
import { ChatOpenAI, OpenAIEmbeddings } from '@langchain/openai';
import * as z from 'zod';

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

  async forms() {
    const visit = z.object({ city: z.literal('Paris'), days: z.number().int().min(3).max(3) });
    const options = { model: 'caller', apiKey: 'secret', maxTokens: 200, maxRetries: 0 };
    const seen = {};
    for (const useResponsesApi of [false, true]) {
      const chat = new ChatOpenAI({
        ...options,
        useResponsesApi,
        configuration: { baseURL: `${url}/v1` },
      });
      const travel = {
        name: 'travel',
        description: 'Books a visit',
        schema: visit,
      };
      const calling = chat.bindTools([travel], { tool_choice: 'travel' });
      const pieces = [];
      for await (const piece of await calling.stream('Where to?')) {
        pieces.push(piece);
      }
      const whole = pieces.reduce((all, piece) => all.concat(piece));
      seen[useResponsesApi ? 'responses' : 'chat'] = {
        schema: await chat
          .withStructuredOutput(visit, { method: 'jsonSchema' })
          .invoke('Where to?'),
        tool: await chat
          .withStructuredOutput(visit, { method: 'functionCalling', name: 'travel' })
          .invoke('Where to?'),
        called: (await calling.invoke('Where to?')).tool_calls.map(({ name, args }) => [
          name,
          args,
        ]),
        streamed: whole.tool_calls.map(({ name, args }) => [name, args]),
      };
    }
    return seen;
  },

  retry: async () => (await embeddings({ model: 'busy' }).embedDocuments(['a'])).length,
};

console.log(JSON.stringify(await steps[what](given && JSON.parse(given))));

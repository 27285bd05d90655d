// The AI SDK. Arguments: what to do, and the address of the server.
import { readFile } from 'node:fs/promises';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import {
  embed,
  embedMany,
  experimental_transcribe,
  generateObject,
  generateText,
  Output,
  stepCountIs,
  streamText,
  tool,
} from 'ai';
import * as z from 'zod';

const [, , what, url, given] = process.argv;
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

  async chat(messages) {
    const options = {
      model: provider.chatModel('writer'),
      messages,
      // The conversations of the test have system messages.
      allowSystemInMessages: true,
      temperature: 0,
      maxOutputTokens: 12,
    };
    const { text, finishReason, usage } = await generateText(options);
    const pieces = [];
    for await (const piece of streamText(options).textStream) {
      pieces.push(piece);
    }
    return { text, finishReason, usage: usage.outputTokens, streamed: pieces.join('') };
  },

  async forms() {
    const schema = z.object({ city: z.literal('Paris'), days: z.number().int().min(3).max(3) });
    const dated = z.object({
      day: z.iso.date(),
      code: z.string().regex(/^[A-Z]{2}-\d{2}$/),
      id: z.uuid(),
    });
    const tools = { travel: tool({ inputSchema: schema, execute: () => 'booked' }) };
    const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: 'secret' });
    const compatible = createOpenAICompatible({
      name: 'serving',
      baseURL: `${url}/v1`,
      apiKey: 'secret',
      supportsStructuredOutputs: true,
    });
    const seen = {};
    // The first is the default of its provider, and calls /v1/responses.
    for (const [name, own] of Object.entries({
      responses: openai('caller'),
      chat: openai.chat('caller'),
      compatible: compatible.chatModel('caller'),
    })) {
      const options = { model: own, prompt: 'Where to?', maxOutputTokens: 200, maxRetries: 0 };
      const calling = { ...options, tools, toolChoice: { type: 'tool', toolName: 'travel' } };
      const { toolCalls, toolResults, finishReason } = await generateText(calling);
      const stream = streamText(calling);
      await stream.consumeStream();
      // The server stores no earlier items.
      const providerOptions = { openai: { store: false } };
      const { steps: taken } = await generateText({
        ...options,
        tools,
        providerOptions,
        stopWhen: stepCountIs(2),
        prepareStep: ({ stepNumber }) => ({
          toolChoice: stepNumber === 0 ? calling.toolChoice : 'none',
        }),
      });
      const object = streamText({ ...options, output: Output.object({ schema }) });
      seen[name] = {
        object: (await generateObject({ ...options, schema })).object,
        streamedObject: await object.output,
        // The client checks the patterns.
        dated: Object.keys((await generateObject({ ...options, schema: dated })).object),
        called: toolCalls.map(({ toolName, input }) => [toolName, input]),
        results: toolResults.map(({ output }) => output),
        finishReason,
        streamed: (await stream.toolCalls).map(({ input }) => input),
        steps: taken.length,
      };
    }
    return seen;
  },

  async speech(path) {
    const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: 'secret' });
    const audio = await readFile(path);
    const hear = (id, providerOptions) =>
      experimental_transcribe({
        model: openai.transcription(id),
        audio,
        providerOptions,
        maxRetries: 0,
      });
    const detailed = await hear('ear', { openai: {} });
    return {
      text: (await hear('ear')).text,
      detailed: {
        text: detailed.text,
        language: detailed.language,
        duration: detailed.durationInSeconds,
        segment: detailed.segments[0],
      },
      error: await hear('nix').catch(({ name, statusCode, message }) => ({
        name,
        statusCode,
        message,
      })),
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

console.log(JSON.stringify(await steps[what](given && JSON.parse(given))));

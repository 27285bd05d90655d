// #region imports
import { Module } from '@nestjs/common';
import { ApiKeyGuard, ServingModule } from 'nestjs-serving';
import { OpenAIModule } from 'nestjs-serving/openai';
// #endregion
import { fileURLToPath } from 'node:url';
import { expect, it } from '@jest/globals';
import { rerank, textEmbedding } from 'nestjs-serving/tasks';
import { writer } from '../../fixtures/tasks/tiny-models.js';
import { describeUnless } from '../../fixtures/describe-unless.js';
import {
  nodeClientPrints,
  openAIClientsMissing,
  pythonClientPrints,
} from '../../fixtures/http/openai-clients.js';
import { describeOnPlatforms } from '../../fixtures/partitions/platforms.js';

const from = (name: string) => ({
  from: fileURLToPath(new URL(`../../fixtures/tasks/${name}`, import.meta.url)),
  isolation: 'none' as const,
});
const embedder = textEmbedding({ name: 'embedder', model: from('embedder') });
const reranker = rerank({ name: 'reranker', model: from('reranker') });

process.env['API_KEY'] = 'secret';

// #region module
@Module({
  imports: [
    ServingModule.forRoot({ servings: [embedder, reranker] }), // Made by tasks.
    OpenAIModule.forRoot({
      models: { 'text-embedding': embedder, reranker }, // The ids that clients use.
      guards: [new ApiKeyGuard(process.env['API_KEY'])],
    }),
  ],
})
export class AppModule {}
// #endregion

@Module({
  imports: [
    ServingModule.forRoot({ servings: [writer] }),
    OpenAIModule.forRoot({ models: { writer }, guards: [] }),
  ],
})
class ChatModule {}

const hashes = {
  name: 'hashes',
  model: {
    useFactory: () => (texts: { text: string }[]) =>
      texts.map(({ text }) => ({ vector: Float32Array.of(text.length, 1), tokens: text.length })),
  },
};

@Module({
  imports: [
    ServingModule.forRoot({ servings: [hashes] }),
    // #region own
    OpenAIModule.forRoot({
      models: { hashes: { serving: 'hashes', task: 'text-embedding' } },
      guards: [],
    }),
    // #endregion
  ],
})
class OwnModule {}

describeOnPlatforms("The manual on OpenAI's API", (listen) => {
  const address = async (): Promise<string> =>
    (await listen({ imports: [AppModule] })).app.getUrl();

  it("[23.1] The manual's serving of its own is a model", async () => {
    const site = await listen({ imports: [OwnModule] });
    const reply = await site.post('/v1/embeddings', { model: 'hashes', input: 'abc' });

    expect(reply.body).toMatchObject({
      data: [{ embedding: [3, 1] }],
      usage: { prompt_tokens: 3 },
    });
  });

  describeUnless(openAIClientsMissing, 'with clients', () => {
    it("[23.1] The manual's client of OpenAI in Node gets vectors", async () => {
      const args = ['', `${await address()}/v1`, 'secret'];

      expect(await nodeClientPrints('manual.mjs', ...args)).toEqual([32, 32]);
    });

    it("[23.1] The manual's client of OpenAI in Python gets a vector", async () => {
      const args = [`${await address()}/v1`, 'secret'];

      expect(await pythonClientPrints('openai_manual.py', ...args)).toEqual([32]);
    });

    it("[23.8] The manual's client of OpenAI in Node reads a stream", async () => {
      const { app } = await listen({ imports: [ChatModule] });
      const args = ['', `${await app.getUrl()}/v1`, 'secret'];

      expect(await nodeClientPrints('manual-chat.mjs', ...args)).toBe('ended');
    });

    it("[23.1] The manual's client of Cohere ranks documents", async () => {
      const args = ['', await address(), 'secret'];

      expect(await nodeClientPrints('manual-rerank.mjs', ...args)).toHaveLength(2);
    });
  });
});

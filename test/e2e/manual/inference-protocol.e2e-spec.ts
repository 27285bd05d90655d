// #region imports
import { Module } from '@nestjs/common';
import { ApiKeyGuard, ServingModule } from 'nestjs-serving';
import { InferenceProtocolModule } from 'nestjs-serving/inference-protocol';
// #endregion
import { expect, it } from '@jest/globals';
import { describeUnless } from '../../fixtures/describe-unless.js';
import { clientPrints, clientsMissing } from '../../fixtures/http/inference-clients.js';
import { describeOnPlatforms } from '../../fixtures/partitions/platforms.js';

const digits = { name: 'digits', model: 'sample/01-digits/model/digits.onnx' };

const tagger = {
  name: 'tagger',
  model: {
    useFactory: () => (texts: string[]) =>
      texts.map((text) => ({
        tag: text.length > 3 ? 'long' : 'short',
        vector: [text.length, 0, 1],
      })),
  },
};

// #region module
@Module({
  imports: [
    ServingModule.forRoot({ servings: [digits] }),
    InferenceProtocolModule.forRoot({}), // All servings of the application are models.
  ],
})
export class AppModule {}
// #endregion

process.env['API_KEY'] = 'secret';

// #region options
@Module({
  imports: [
    ServingModule.forRoot({ servings: [digits, tagger] }),
    InferenceProtocolModule.forRoot({
      servings: [
        'digits',
        {
          serving: 'tagger',
          model: 'tags',
          inputs: { text: 'BYTES' }, // A row is a string,
          outputs: { tag: 'BYTES', vector: 'FP32[3]' }, // and its result { tag, vector }.
        },
      ],
      guards: [new ApiKeyGuard(process.env['API_KEY'])],
      bodyLimit: 16 * 2 ** 20,
    }),
  ],
})
export class GuardedModule {}
// #endregion

describeOnPlatforms('The manual on the Open Inference Protocol', (listen) => {
  it("[18.1] [18.2] The manual's client infers over HTTP without a library", async () => {
    const { app } = await listen({ imports: [AppModule] });
    const url = await app.getUrl();
    const pixels = Array.from({ length: 784 }, () => 0);
    // #region fetch
    const response = await fetch(`${url}/v2/models/digits/infer`, {
      method: 'POST',
      body: JSON.stringify({
        inputs: [{ name: 'image', shape: [1, 784], datatype: 'FP32', data: pixels }],
      }),
    });
    const { outputs } = JSON.parse(await response.text());
    const [{ name, shape, data }] = outputs; // 'probabilities', [1, 10] and ten numbers
    // #endregion
    expect([name, shape, data.length]).toEqual(['probabilities', [1, 10], 10]);
  });

  it("[18.6] [18.12] [X1] The manual's guarded application has a function as a model", async () => {
    const site = await listen({ imports: [GuardedModule] });
    const infer = (headers: Record<string, string>) =>
      site.post(
        '/v2/models/tags/infer',
        { inputs: [{ name: 'text', shape: [2], datatype: 'BYTES', data: ['a', 'train'] }] },
        headers,
      );

    expect((await infer({})).status).toBe(401);
    expect((await infer({ 'x-api-key': 'secret' })).body).toMatchObject({
      outputs: [
        { name: 'tag', shape: [2], data: ['short', 'long'] },
        { name: 'vector', shape: [2, 3], data: [1, 0, 1, 5, 0, 1] },
      ],
    });
  });

  describeUnless(clientsMissing, 'in Python', () => {
    it("[18.16] The manual's client infers with the client of Triton", async () => {
      const { app } = await listen({ imports: [AppModule] });
      const { host } = new URL(await app.getUrl());

      expect(await clientPrints('client', 'manual.py', host)).toEqual([3, 10]);
    });
  });
});

// #region entities
import { Body, Controller, Module, Post } from '@nestjs/common';
import { InjectServing, ServingModule, type ServingOf } from 'nestjs-serving';
import { type TextEntity, tokenClassification } from 'nestjs-serving/tasks';

export const names = tokenClassification({ name: 'names', model: 'hf:Xenova/bert-base-NER' });

@Controller()
export class NamesController {
  constructor(@InjectServing(names) private readonly serving: ServingOf<typeof names>) {}

  @Post('names')
  find(@Body() { text }: { text: string }): Promise<readonly TextEntity[]> {
    return this.serving.batchedRun(text); // [{ label: 'PER', score: 0.99, text: 'Ada', start: 0, end: 3 }]
  }

  @Post('redacted')
  async redact(@Body() { text }: { text: string }): Promise<string> {
    const entities = await this.serving.batchedRun(text);
    return entities.reduceRight(
      (rest, { label, start, end }) => `${rest.slice(0, start)}[${label}]${rest.slice(end)}`,
      text,
    );
  }
}

@Module({ imports: [ServingModule.forRoot({ servings: [names] })], controllers: [NamesController] })
export class NamesModule {}
// #endregion
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import type { INestApplication } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { HubServer, ModelServer } from '../../fixtures/http/model-server.js';
import { useModelCache } from '../../fixtures/http/use-model-cache.js';

describe('The manual on entities', () => {
  useModelCache();
  let store: ModelServer;
  let hub: HubServer;
  let app: INestApplication;

  beforeAll(async () => {
    store = await new ModelServer().listen();
    hub = await new HubServer(store).listen();
    hub.commitFolder('Xenova/bert-base-NER', 'test/fixtures/tasks/tagger');
    process.env['HF_ENDPOINT'] = hub.origin;
    const module = await Test.createTestingModule({ imports: [NamesModule] }).compile();
    app = await module.createNestApplication({ logger: false }).init();
  });

  afterAll(async () => {
    await app.close();
    await Promise.all([hub.close(), store.close()]);
  });

  it("[22.15] The manual's entities are parts of their text, and can be taken out", async () => {
    const text = '😀 Ada went to London.';
    const entities = await app.get(NamesController).find({ text });
    expect(entities.map(({ start, end }) => text.slice(start, end))).toEqual(
      entities.map((entity) => entity.text),
    );
    const redacted = await app.get(NamesController).redact({ text });
    expect(redacted.match(/\[(?:PER|LOC)\]/g)).toHaveLength(entities.length);
  });
});

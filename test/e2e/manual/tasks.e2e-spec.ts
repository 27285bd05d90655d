// #region imports
import {
  Body,
  Controller,
  Injectable,
  type MessageEvent,
  Module,
  Post,
  Query,
  Sse,
} from '@nestjs/common';
import { InjectServing, ServingModule, type ServingOf } from 'nestjs-serving';
import { rerank, textClassification, textEmbedding, textGeneration } from 'nestjs-serving/tasks';
import { map, type Observable } from 'rxjs';
// #endregion
import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import type { INestApplication } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { getServingToken } from 'nestjs-serving';
import type { GeneratedText } from 'nestjs-serving/tasks';
import { firstValueFrom, toArray } from 'rxjs';
import { HubServer, ModelServer } from '../../fixtures/http/model-server.js';
import { useModelCache } from '../../fixtures/http/use-model-cache.js';

// #region embedder
export const embedder = textEmbedding({
  name: 'embedder',
  model: 'hf:sentence-transformers/all-MiniLM-L6-v2',
});

@Injectable()
export class Search {
  constructor(@InjectServing(embedder) private readonly serving: ServingOf<typeof embedder>) {}

  async vectorOf(text: string): Promise<Float32Array> {
    const { vector } = await this.serving.batchedRun(text);
    return vector;
  }
}

@Module({ imports: [ServingModule.forRoot({ servings: [embedder] })], providers: [Search] })
export class SearchModule {}
// #endregion

// #region prompts
export const passages = textEmbedding({
  name: 'passages',
  model: 'hf:Xenova/e5-small-v2',
  pooling: 'mean',
  prompts: { query: 'query: ', document: 'passage: ' },
  defaultPrompt: 'document',
  tooLong: 'cut',
});

export type Passages = ServingOf<typeof passages>;

export async function similarity(
  serving: Passages,
  question: string,
  text: string,
): Promise<number> {
  const [query, document] = await Promise.all([
    serving.batchedRun({ text: question, prompt: 'query' }),
    serving.batchedRun(text),
  ]);
  return query.vector.reduce((sum, value, i) => sum + value * document.vector[i]!, 0);
}
// #endregion

// #region reranker
export const reranker = rerank({
  name: 'reranker',
  model: 'hf:cross-encoder/ms-marco-MiniLM-L6-v2',
  tooLong: 'cut',
});

@Controller()
export class AnswersController {
  constructor(@InjectServing(reranker) private readonly serving: ServingOf<typeof reranker>) {}

  @Post('best')
  best(@Body() { query, documents }: { query: string; documents: string[] }) {
    return this.serving.batchedRun({ query, documents, top: 3 }); // [{ index, score }, ...]
  }
}
// #endregion

// #region classifier
export const mood = textClassification({
  name: 'mood',
  model: 'hf:Xenova/distilbert-base-uncased-finetuned-sst-2-english',
  top: 1,
});

export async function isPositive(serving: ServingOf<typeof mood>, text: string): Promise<boolean> {
  const [best] = await serving.batchedRun(text); // [{ label: 'POSITIVE', score: 0.99 }]
  return best!.label === 'POSITIVE';
}
// #endregion

// #region writer
export const writer = textGeneration({
  name: 'writer',
  model: { from: 'hf:my-org/my-chat-model', file: 'model.onnx' },
  batchSize: 16,
});

@Controller()
export class WriterController {
  constructor(@InjectServing(writer) private readonly serving: ServingOf<typeof writer>) {}

  @Sse('write')
  write(@Query('question') question: string): Observable<MessageEvent> {
    const messages = [{ role: 'user', content: question }];
    return this.serving
      .stream({ messages, maxTokens: 200, temperature: 0.7, topP: 0.9 })
      .pipe(map(({ output }) => ({ data: output }))); // { text, tokens }, at last finishReason and usage
  }
}
// #endregion

describe('The manual on tasks', () => {
  useModelCache();
  let store: ModelServer;
  let hub: HubServer;
  const apps: INestApplication[] = [];

  beforeAll(async () => {
    store = await new ModelServer().listen();
    hub = await new HubServer(store).listen();
    hub.commitFolder('sentence-transformers/all-MiniLM-L6-v2', 'test/fixtures/tasks/embedder');
    hub.commitFolder('Xenova/e5-small-v2', 'test/fixtures/tasks/embedder');
    hub.commitFolder('cross-encoder/ms-marco-MiniLM-L6-v2', 'test/fixtures/tasks/reranker');
    hub.commitFolder(
      'Xenova/distilbert-base-uncased-finetuned-sst-2-english',
      'test/fixtures/tasks/classifier',
    );
    hub.commitFolder('my-org/my-chat-model', 'test/fixtures/tasks/generator');
    const model = readFileSync('test/fixtures/tasks/generator/onnx/model_gqa.onnx');
    hub.commit('my-org/my-chat-model', 'main', 'model.onnx', model, 'a'.repeat(40));
  });

  afterAll(async () => {
    await Promise.all(apps.map((app) => app.close()));
    await Promise.all([hub.close(), store.close()]);
  });

  async function start(metadata: object): Promise<INestApplication> {
    process.env['HF_ENDPOINT'] = hub.origin;
    const app = (await Test.createTestingModule(metadata).compile()).createNestApplication({
      logger: false,
    });
    apps.push(app);
    return app.init();
  }

  it("[22.1] The manual's embedder gives vectors of length 1", async () => {
    const app = await start({ imports: [SearchModule] });
    const vector = await app.get(Search).vectorOf('rows');
    expect(vector).toHaveLength(32);
    expect(Math.hypot(...vector)).toBeCloseTo(1, 5);
  });

  it("[22.3] The manual's prompts tell queries from documents", async () => {
    const app = await start({ imports: [ServingModule.forRoot({ servings: [passages] })] });
    const serving = app.get<Passages>(getServingToken('passages'));
    const same = await similarity(serving, 'rows', 'rows');
    expect(same).toBeLessThan(0.9999);
    expect(same).toBeGreaterThan(0);
  });

  it("[22.6] The manual's reranker gives the best three documents", async () => {
    const app = await start({
      imports: [ServingModule.forRoot({ servings: [reranker] })],
      controllers: [AnswersController],
    });
    const documents = ['a', 'b', 'c', 'd'];
    const best = await app.get(AnswersController).best({ query: 'rows', documents });
    expect(best).toHaveLength(3);
    expect(best[0]!.score).toBeGreaterThan(best[2]!.score);
  });

  it("[22.7] The manual's classifier has its model's labels", async () => {
    const app = await start({ imports: [ServingModule.forRoot({ servings: [mood] })] });
    const serving = app.get<ServingOf<typeof mood>>(getServingToken('mood'));
    expect(await isPositive(serving, 'rows')).toBe(false);
  });

  it("[22.10] The manual's writer streams an answer in pieces", async () => {
    const app = await start({
      imports: [ServingModule.forRoot({ servings: [writer] })],
      controllers: [WriterController],
    });
    const events$ = app.get(WriterController).write('What is a batch?').pipe(toArray());
    const pieces = (await firstValueFrom(events$)).map(({ data }) => data as GeneratedText);
    expect(pieces.at(-1)!.usage!.completionTokens).toBeGreaterThan(1);
    expect(pieces.map(({ text }) => text).join('')).not.toBe('');
  });
});

// #region imports
import { Injectable, Module } from '@nestjs/common';
import { InjectServing, ServingModule, type ServingOf } from 'nestjs-serving';
import { textEmbedding } from 'nestjs-serving/tasks';
// #endregion
import { describe, expect, it } from '@jest/globals';
import { getServingToken } from 'nestjs-serving';
import { useTaskModels } from '../../../fixtures/tasks/use-task-models.js';

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

describe('The guide to embeddings', () => {
  const start = useTaskModels();

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
});

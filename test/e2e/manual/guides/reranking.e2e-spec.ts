// #region imports
import { Body, Controller, Module, Post } from '@nestjs/common';
import { InjectServing, ServingModule, type ServingOf } from 'nestjs-serving';
import { rerank } from 'nestjs-serving/tasks';
// #endregion
import { expect, it } from '@jest/globals';
import { getServingToken } from 'nestjs-serving';
import { useTaskModels } from '../../../fixtures/tasks/use-task-models.js';

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

@Module({
  imports: [ServingModule.forRoot({ servings: [reranker] })],
  controllers: [AnswersController],
})
export class AnswersModule {}
// #endregion

// #region template
export const judge = rerank({
  name: 'judge',
  model: 'hf:my-org/qwen3-reranker-seq-cls',
  tooLong: 'cut',
  template: `<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: Given a web search query, retrieve relevant passages that answer the query
<Query>: {query}
<Document>: {document}<|im_end|>
<|im_start|>assistant
<think>

</think>

`,
});
// #endregion

const start = useTaskModels();

it("[22.6] The manual's reranker gives the best three documents", async () => {
  const app = await start({ imports: [AnswersModule] });
  const documents = ['a', 'b', 'c', 'd'];
  const best = await app.get(AnswersController).best({ query: 'rows', documents });
  expect(best).toHaveLength(3);
  expect(best[0]!.score).toBeGreaterThan(best[2]!.score);
});

it("[22.32] The manual's template reaches a language model", async () => {
  const app = await start({ imports: [ServingModule.forRoot({ servings: [judge] })] });
  const serving = app.get<ServingOf<typeof judge>>(getServingToken(judge));
  const [one] = await serving.batchedRun({ query: 'rows', documents: ['a batch'] });
  expect(one).toEqual({ index: 0, score: expect.any(Number), tokens: expect.any(Number) });
  expect(one!.tokens).toBeGreaterThan(50);
});

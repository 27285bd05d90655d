// #region imports
import { Body, Controller, Module, Post } from '@nestjs/common';
import { InjectServing, ServingModule, type ServingOf } from 'nestjs-serving';
import { rerank } from 'nestjs-serving/tasks';
// #endregion
import { expect, it } from '@jest/globals';
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

const start = useTaskModels();

it("[22.6] The manual's reranker gives the best three documents", async () => {
  const app = await start({ imports: [AnswersModule] });
  const documents = ['a', 'b', 'c', 'd'];
  const best = await app.get(AnswersController).best({ query: 'rows', documents });
  expect(best).toHaveLength(3);
  expect(best[0]!.score).toBeGreaterThan(best[2]!.score);
});

// #region imports
import { Body, Controller, Injectable, Module, Post } from '@nestjs/common';
import { InjectServing, ServingModule, type ServingOf } from 'nestjs-serving';
import { textClassification, zeroShotClassification } from 'nestjs-serving/tasks';
// #endregion
import { expect, it } from '@jest/globals';
import { useTaskModels } from '../../../fixtures/tasks/use-task-models.js';

// #region classifier
export const mood = textClassification({
  name: 'mood',
  model: 'hf:Xenova/distilbert-base-uncased-finetuned-sst-2-english',
});

@Controller('mood')
export class MoodController {
  constructor(@InjectServing(mood) private readonly serving: ServingOf<typeof mood>) {}

  @Post()
  async read(@Body('text') text: string) {
    const [best, ...others] = await this.serving.batchedRun(text); // Labels, the best first.
    return { best, others }; // { best: { label: 'POSITIVE', score: 0.99 }, others: [...] }
  }
}

@Module({
  imports: [ServingModule.forRoot({ servings: [mood] })],
  controllers: [MoodController],
})
export class MoodModule {}
// #endregion

// #region zero-shot
export const topics = zeroShotClassification({
  name: 'topics',
  model: 'hf:Xenova/nli-deberta-v3-xsmall',
  template: 'This message is about {}.',
});

@Injectable()
export class Inbox {
  constructor(@InjectServing(topics) private readonly serving: ServingOf<typeof topics>) {}

  async topicOf(text: string) {
    const [best] = await this.serving.batchedRun({ text, labels: ['a refund', 'a delivery'] });
    return best!; // { label: 'a refund', score: 0.97 }
  }
}
// #endregion

const start = useTaskModels();

it("[22.7] The manual's classifier has its model's labels", async () => {
  const app = await start({ imports: [MoodModule] });
  const { best, others } = await app.get(MoodController).read('rows');
  expect(best!.label).not.toBe('POSITIVE');
  expect(best!.score + others.reduce((sum, { score }) => sum + score, 0)).toBeCloseTo(1, 5);
});

it("[22.28] The manual's inbox finds the topic of a message", async () => {
  const app = await start({
    imports: [ServingModule.forRoot({ servings: [topics] })],
    providers: [Inbox],
  });
  const { label, score } = await app.get(Inbox).topicOf('Where is my money?');
  expect(['a refund', 'a delivery']).toContain(label);
  expect(score).toBeGreaterThan(0);
});

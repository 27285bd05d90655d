// #region imports
import { Body, Controller, Module, Post } from '@nestjs/common';
import { InjectServing, ServingModule, type ServingOf } from 'nestjs-serving';
import { type TextEntity, tokenClassification } from 'nestjs-serving/tasks';
// #endregion
import { expect, it } from '@jest/globals';
import { useTaskModels } from '../../../fixtures/tasks/use-task-models.js';

// #region entities
export const names = tokenClassification({ name: 'names', model: 'hf:Xenova/bert-base-NER' });

@Controller()
export class NamesController {
  constructor(@InjectServing(names) private readonly serving: ServingOf<typeof names>) {}

  @Post('names')
  find(@Body('text') text: string): Promise<readonly TextEntity[]> {
    return this.serving.batchedRun(text); // [{ label: 'PER', score: 0.99, text: 'Ada', start: 0, end: 3 }]
  }

  @Post('redacted')
  async redact(@Body('text') text: string): Promise<string> {
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

const start = useTaskModels();

it("[22.15] The manual's entities are parts of their text, and can be taken out", async () => {
  const app = await start({ imports: [NamesModule] });
  const controller = app.get(NamesController);
  const text = '😀 Ada went to London.';
  const entities = await controller.find(text);
  expect(entities.map((entity) => text.slice(entity.start, entity.end))).toEqual(
    entities.map((entity) => entity.text),
  );
  const redacted = await controller.redact(text);
  expect(redacted.match(/\[(?:PER|LOC)\]/g)).toHaveLength(entities.length);
});

// #region imports
import { Controller, type MessageEvent, Module, Query, Sse } from '@nestjs/common';
import { ApiKeyGuard, InjectServing, ServingModule, type ServingOf } from 'nestjs-serving';
import { OpenAIModule } from 'nestjs-serving/openai';
import { textGeneration } from 'nestjs-serving/tasks';
import { map, type Observable } from 'rxjs';
// #endregion
import { expect, it } from '@jest/globals';
import type { INestApplication } from '@nestjs/common';
import type { GeneratedText } from 'nestjs-serving/tasks';
import { firstValueFrom, toArray } from 'rxjs';
import { describeInBrowser } from '../../../fixtures/http/describe-in-browser.js';
import { runPage } from '../../../fixtures/http/run-page.js';
import { useTaskModels } from '../../../fixtures/tasks/use-task-models.js';

process.env['API_KEY'] = 'secret';

// #region writer
export const writer = textGeneration({
  name: 'writer',
  model: { from: 'hf:my-org/my-chat-model', file: 'model.onnx' },
  batchSize: 16,
});
// #endregion

// #region controller
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

// #region module
@Module({
  imports: [
    ServingModule.forRoot({ servings: [writer] }),
    OpenAIModule.forRoot({
      models: { writer }, // The name that clients use.
      guards: [new ApiKeyGuard(process.env['API_KEY'])],
    }),
  ],
  controllers: [WriterController],
})
export class ChatModule {}
// #endregion

const start = useTaskModels();
let app: INestApplication;

it("[22.10] The manual's writer streams an answer in pieces", async () => {
  app = await start({ imports: [ChatModule] });
  const events$ = app.get(WriterController).write('What is a batch?').pipe(toArray());
  const pieces = (await firstValueFrom(events$)).map(({ data }) => data as GeneratedText);
  expect(pieces.at(-1)!.usage!.completionTokens).toBeGreaterThan(1);
  expect(pieces.map(({ text }) => text).join('')).not.toBe('');
});

it("[23.8] The manual's chat endpoint answers a conversation", async () => {
  await app.listen(0);
  const response = await fetch(`${await app.getUrl()}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: 'Bearer secret' },
    body: JSON.stringify({
      model: 'writer',
      messages: [{ role: 'user', content: 'What is a batch?' }],
      max_tokens: 8,
      temperature: 0,
    }),
  });
  const { choices } = (await response.json()) as { choices: { message: object }[] };
  expect(choices[0]!.message).toMatchObject({ role: 'assistant', content: expect.any(String) });
});

describeInBrowser((openPage) => {
  it("[FU2] The manual's page closes its source at the last piece", async () => {
    const { page } = await openPage(`${await app.getUrl()}/nothing`, {});
    const question = 'What is a batch?';
    expect(await runPage(page, 'test/e2e/manual/pages/answer.js', { question })).not.toBe('');
  });
});

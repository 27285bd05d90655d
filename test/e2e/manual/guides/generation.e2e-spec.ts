// #region imports
import { Injectable, Module } from '@nestjs/common';
import { ApiKeyGuard, InjectServing, ServingModule, type ServingOf } from 'nestjs-serving';
import { OpenAIModule } from 'nestjs-serving/openai';
import type { ChatMessage } from 'nestjs-serving/tasks';
// #endregion
import { expect, it } from '@jest/globals';
import type { INestApplication } from '@nestjs/common';
import type { GeneratedText } from 'nestjs-serving/tasks';
import { firstValueFrom, toArray } from 'rxjs';
import { useTaskModels } from '../../../fixtures/tasks/use-task-models.js';
import { ChatController, writer } from '../../starters/app/chat.module.js';

process.env['API_KEY'] = 'secret';

// #region format
const facts = {
  type: 'object',
  properties: {
    sender: { type: 'string' },
    urgency: { enum: ['low', 'high'] },
  },
  required: ['sender', 'urgency'],
};

@Injectable()
export class Letters {
  constructor(@InjectServing(writer) private readonly serving: ServingOf<typeof writer>) {}

  async read(letter: string): Promise<unknown> {
    const messages = [{ role: 'user', content: `Who writes, and how urgent is it?\n${letter}` }];
    const call = { messages, format: { schema: facts }, maxTokens: 300 };
    const { text, finishReason } = await this.serving.batchedRun(call);
    if (finishReason === 'length') {
      throw new Error('The answer has no end'); // A model may write long texts in a field.
    }
    return JSON.parse(text);
  }
}
// #endregion

// #region tools
const tools = [
  {
    name: 'find_order',
    description: 'Finds an order by its number',
    parameters: {
      type: 'object',
      properties: { number: { type: 'integer' } },
      required: ['number'],
    },
  },
];

@Injectable()
export class Assistant {
  constructor(@InjectServing(writer) private readonly serving: ServingOf<typeof writer>) {}

  async ask(question: string): Promise<string> {
    const messages: ChatMessage[] = [{ role: 'user', content: question }];
    for (let turn = 0; turn < 5; turn++) {
      const call = { messages, tools, maxTokens: 300 };
      const { text, toolCalls } = await this.serving.batchedRun(call);
      if (!toolCalls) {
        return text;
      }
      messages.push({ role: 'assistant', content: text, toolCalls });
      for (const { name, arguments: given } of toolCalls) {
        messages.push({ role: 'tool', name, content: JSON.stringify(await this.run(name, given)) });
      }
    }
    return 'I could not find out.';
  }

  async run(name: string, given: Readonly<Record<string, unknown>>): Promise<unknown> {
    return { name, ...given, state: 'sent' }; // Ask your own services here.
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
})
export class ChatModule {}
// #endregion

@Module({
  imports: [ServingModule.forRoot({ servings: [writer] })],
  providers: [Letters, Assistant],
})
class FormsModule {}

const start = useTaskModels();
let app: INestApplication;

it("[22.10] The manual's writer streams an answer in pieces", async () => {
  app = await start({ imports: [ChatModule], controllers: [ChatController] });
  const events$ = app.get(ChatController).write('What is a batch?').pipe(toArray());
  const pieces = (await firstValueFrom(events$)).map(({ data }) => data as GeneratedText);
  const { finishReason, usage } = pieces.at(-1)!;
  const tokens = pieces.flatMap((piece) => piece.tokens);
  // The end token is no part of the answer.
  expect(tokens).toHaveLength(usage!.completionTokens - (finishReason === 'stop' ? 1 : 0));
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

it("[22.24] The manual's reader of letters gets a form, or hears of a cut one", async () => {
  const forms = await start({ imports: [FormsModule] });
  const letter = await forms
    .get(Letters)
    .read('Help!')
    .catch((error: Error) => error.message);
  expect(letter === 'The answer has no end' || Object.keys(letter as object)).toEqual(
    letter === 'The answer has no end' || ['sender', 'urgency'],
  );

  // The model of the tests calls no tool, unless it must.
  const assistant = forms.get(Assistant);
  expect(await assistant.ask('Where is order 5?')).toEqual(expect.any(String));
  expect(await assistant.run('find_order', { number: 5 })).toMatchObject({ state: 'sent' });
});

// #region app
// src/app.module.ts
import { Controller, Get, Header, type MessageEvent, Module, Query, Sse } from '@nestjs/common';
import { InjectServing, ServingModule, type ServingOf } from 'nestjs-serving';
import { textGeneration } from 'nestjs-serving/tasks';
import { readFile } from 'node:fs/promises';
import { map, type Observable } from 'rxjs';

export const writer = textGeneration({
  name: 'writer',
  model: { from: 'hf:HuggingFaceTB/SmolLM2-135M-Instruct', file: 'onnx/model_q4.onnx' },
});

@Controller()
export class ChatController {
  constructor(@InjectServing(writer) private readonly serving: ServingOf<typeof writer>) {}

  @Get()
  @Header('content-type', 'text/html; charset=utf-8')
  page(): Promise<string> {
    return readFile('chat.html', 'utf8');
  }

  @Sse('write')
  write(@Query('question') question: string): Observable<MessageEvent> {
    const messages = [{ role: 'user', content: question }];
    return this.serving
      .stream({ messages, maxTokens: 200, temperature: 0.7, topP: 0.9 })
      .pipe(map(({ output }) => ({ data: output }))); // { text, tokens }, at last finishReason and usage
  }
}

@Module({
  imports: [ServingModule.forRoot({ servings: [writer] })],
  controllers: [ChatController],
})
export class AppModule {}
// #endregion

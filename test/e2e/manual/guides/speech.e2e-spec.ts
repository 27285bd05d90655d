// #region imports
import {
  Controller,
  Module,
  ParseFilePipe,
  Post,
  UploadedFile,
  UseInterceptors,
} from '@nestjs/common';
import { FileInterceptor } from '@nestjs/platform-express';
import { ApiKeyGuard, InjectServing, ServingModule, type ServingOf } from 'nestjs-serving';
import { OpenAIModule } from 'nestjs-serving/openai';
import { speechToText, type Transcript, type TranscriptWord } from 'nestjs-serving/tasks';
// #endregion
import { readFileSync } from 'node:fs';
import { expect, it } from '@jest/globals';
import { getServingToken } from 'nestjs-serving';
import { describeUnless } from '../../../fixtures/describe-unless.js';
import { missing } from '../../../fixtures/http/server-process.js';
import { useTaskModels } from '../../../fixtures/tasks/use-task-models.js';

process.env['API_KEY'] = 'secret';

// #region ear
export const ear = speechToText({
  name: 'ear',
  model: 'hf:Xenova/whisper-tiny',
});

@Controller()
export class NotesController {
  constructor(@InjectServing(ear) private readonly serving: ServingOf<typeof ear>) {}

  @Post('notes')
  @UseInterceptors(FileInterceptor('recording', { limits: { fileSize: 25 * 2 ** 20 } }))
  write(@UploadedFile(new ParseFilePipe()) recording: { buffer: Uint8Array }): Promise<Transcript> {
    return this.serving.batchedRun(recording.buffer); // { text, segments, language, duration }
  }
}
// #endregion

// #region module
@Module({
  imports: [
    ServingModule.forRoot({ servings: [ear] }),
    OpenAIModule.forRoot({
      models: { 'whisper-1': ear }, // The name that clients use.
      guards: [new ApiKeyGuard(process.env['API_KEY'])],
      bodyLimit: 26 * 2 ** 20,
    }),
  ],
  controllers: [NotesController],
})
export class SpeechModule {}
// #endregion

// #region stream
export async function printAsHeard(
  serving: ServingOf<typeof ear>,
  audio: Uint8Array,
): Promise<void> {
  for await (const { output } of serving.stream({ audio, language: 'en' })) {
    process.stdout.write(output.text);
  }
}
// #endregion

// #region words
export async function timesOf(
  serving: ServingOf<typeof ear>,
  recording: Uint8Array,
): Promise<readonly TranscriptWord[]> {
  const asked = { audio: recording, prompt: 'Lovelace, Babbage', words: true };
  const { segments } = await serving.batchedRun(asked);
  return segments.flatMap(({ words = [] }) => words); // [{ text: 'Lovelace,', start: 0.4, end: 0.82 }, ...]
}
// #endregion

const start = useTaskModels();

describeUnless(missing('ffmpeg'), 'The manual on speech', () => {
  it('[22.16] writes down an upload, and answers a client of OpenAI', async () => {
    const app = await start({ imports: [SpeechModule] });
    const bytes = readFileSync('sample/03-audio-streams/clip/speech.wav');
    const { text, language } = await app.get(NotesController).write({ buffer: bytes });
    expect([text.length > 2, language]).toEqual([true, 'fr']);
    const words = await timesOf(app.get<ServingOf<typeof ear>>(getServingToken(ear)), bytes);
    expect(words[0]).toEqual({
      text: expect.any(String),
      start: expect.any(Number),
      end: expect.any(Number),
    });

    await app.listen(0);
    const form = new FormData();
    form.append('file', new Blob([new Uint8Array(bytes)]), 'speech.wav');
    form.append('model', 'whisper-1');
    const reply = await fetch(`${await app.getUrl()}/v1/audio/transcriptions`, {
      method: 'POST',
      headers: { authorization: 'Bearer secret' },
      body: form,
    });
    expect(await reply.json()).toEqual({ text });
  });
});

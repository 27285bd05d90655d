import { Module } from '@nestjs/common';
import { ChatTokenizer } from './chat-tokenizer.js';
import { fetchModel } from './fetch-model.js';

/** Token of the folder that the model's files are in. */
export const MODEL_FOLDER = Symbol('MODEL_FOLDER');

@Module({
  providers: [
    { provide: MODEL_FOLDER, useFactory: fetchModel },
    {
      provide: ChatTokenizer,
      inject: [MODEL_FOLDER],
      useFactory: (folder: string) => ChatTokenizer.load(folder),
    },
  ],
  exports: [MODEL_FOLDER, ChatTokenizer],
})
export class ModelModule {}

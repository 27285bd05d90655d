import { Module } from '@nestjs/common';
import { readModel } from './fetch-model.js';

/** Token of the model's files. */
export const MODEL_FILES = Symbol('MODEL_FILES');

@Module({
  providers: [{ provide: MODEL_FILES, useFactory: readModel }],
  exports: [MODEL_FILES],
})
export class ModelModule {}

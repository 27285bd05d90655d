// #region model
import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { defineServing, ServingModule, ServingService, type Tensor } from 'nestjs-serving';
import { ServingClusterModule } from 'nestjs-serving/distribution';
import { digits as model } from '../models/digits.js';
import { modelNode } from './wiring.js';

const digits = defineServing({
  name: 'digits',
  model: { file: model.path, session: { intraOpNumThreads: 1 } },
  batchSize: 32,
  postprocess: ({ probabilities }: { probabilities: Tensor }) =>
    Array.from(probabilities.data as Float32Array),
});

@Module({
  imports: [ServingModule.forRoot({ servings: [digits] }), ServingClusterModule.forRoot(modelNode)],
})
class ModelNode {}

const app = await NestFactory.createApplicationContext(ModelNode, { logger: ['error', 'warn'] });
app.enableShutdownHooks();
// Ends this process when the primary process has crashed.
process.once('disconnect', () => void app.close());
// #endregion

// For the measurement: rows and batches so far.
process.on('message', () => process.send?.(app.get(ServingService).get('digits').counters()));

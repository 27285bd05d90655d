import { defineServing, Tensor } from 'nestjs-serving';
import { digits as model } from '../../../models/digits.js';
import { batchSize, session } from '../../../models/model.js';
import { likeliest, type Reply } from './image.js';

export const digits = defineServing({
  name: 'digits',
  model: { file: model.path, session },
  batchSize,
  preprocess: (image: number[]) => ({
    batch: { image: new Tensor('float32', Float32Array.from(image), [1, ...model.rowShape]) },
  }),
  postprocess: ({ probabilities }: { probabilities: Tensor }): Reply => ({
    digit: likeliest(probabilities.data as Float32Array),
  }),
});

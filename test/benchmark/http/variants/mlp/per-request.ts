import { Module } from '@nestjs/common';
import { InferenceSession, Tensor } from 'onnxruntime-node';
import { mlp } from '../../../models/mlp.js';
import { session as options } from '../../../models/model.js';
import { ScoreController, Scorer } from './score.controller.js';

/** What one writes first: the request handler runs the model. */
class SessionScorer extends Scorer {
  private readonly session = InferenceSession.create(mlp.path, options);

  async score(row: Float32Array): Promise<Float32Array> {
    const session = await this.session;
    const { output } = await session.run({
      input: new Tensor('float32', row, [1, ...mlp.rowShape]),
    });
    return output?.data as Float32Array;
  }
}

@Module({
  providers: [{ provide: Scorer, useClass: SessionScorer }],
  controllers: [ScoreController],
})
export class PerRequestModule {}

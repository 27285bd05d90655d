import { Module, type OnApplicationShutdown } from '@nestjs/common';
import { Piscina } from 'piscina';
import { mlp } from '../../../models/mlp.js';
import { ScoreController, Scorer } from './score.controller.js';

/**
 * What one writes next: the model runs in a pool of threads, as many as the batched variant has
 * partitions, which is one.
 */
class PoolScorer extends Scorer implements OnApplicationShutdown {
  private readonly pool = new Piscina<Float32Array, Float32Array>({
    filename: new URL('./piscina.task.js', import.meta.url).href,
    workerData: mlp,
    minThreads: 1,
    maxThreads: 1,
    // Without it a task may be overtaken for seconds by later ones.
    stricterFIFO: true,
  });

  score(row: Float32Array<ArrayBuffer>): Promise<Float32Array> {
    return this.pool.run(row, { transferList: [row.buffer] });
  }

  async onApplicationShutdown(): Promise<void> {
    await this.pool.close();
  }
}

@Module({ providers: [{ provide: Scorer, useClass: PoolScorer }], controllers: [ScoreController] })
export class PiscinaModule {}

import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import type { BenchmarkModel } from '../models/model.js';

export type ThreadRequest =
  | { readonly kind: 'loop'; readonly rows: number; readonly runs: number }
  | { readonly kind: 'run'; readonly data: Float32Array };

/**
 * The baseline of P1, P3, P6 and P14: a worker thread that holds a session, with nothing around it. One
 * question at a time.
 */
export class Thread {
  private constructor(private readonly worker: Worker) {}

  static async start(model: BenchmarkModel): Promise<Thread> {
    const worker = new Worker(new URL('./thread.worker.js', import.meta.url), {
      workerData: model,
    });
    await once(worker, 'message');
    return new Thread(worker);
  }

  /**
   * Seconds that `runs` runs of one prepared batch of `rows` rows take; nothing crosses the
   * thread's border meanwhile.
   */
  loop(rows: number, runs: number): Promise<number> {
    return this.ask<number>({ kind: 'loop', rows, runs }, []);
  }

  /** One run for the data of one row or many, moved there and back without a copy. */
  run(data: Float32Array<ArrayBuffer>): Promise<Float32Array> {
    return this.ask<Float32Array>({ kind: 'run', data }, [data.buffer]);
  }

  async close(): Promise<void> {
    await this.worker.terminate();
  }

  private ask<Answer>(request: ThreadRequest, transfer: ArrayBuffer[]): Promise<Answer> {
    return new Promise((resolve) => {
      this.worker.once('message', resolve);
      this.worker.postMessage(request, transfer);
    });
  }
}

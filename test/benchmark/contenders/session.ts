import type { TypedTensor } from 'onnxruntime-common';
import { InferenceSession } from 'onnxruntime-node';
import { type BenchmarkModel, session as options } from '../models/model.js';

/**
 * The baseline of P8: what one writes first, a session of the main thread that every call runs by
 * itself.
 */
export class Session {
  private readonly waiting: (() => void)[] = [];
  private running = 0;

  private constructor(
    private readonly session: InferenceSession,
    /** So many calls run side by side, as many as a server has connections; others wait for one. */
    private readonly connections: number,
  ) {}

  static async start({ path }: BenchmarkModel, connections: number): Promise<Session> {
    return new Session(await InferenceSession.create(path, options), connections);
  }

  /**
   * Runs the row, unless its caller has given up before its turn, at that time of
   * `performance.now()`.
   */
  async run(row: TypedTensor<'float32'>, givesUpAt: number): Promise<unknown> {
    if (this.running === this.connections) {
      await new Promise<void>((resolve) => this.waiting.push(resolve));
    } else {
      this.running++;
    }
    try {
      if (performance.now() > givesUpAt) {
        throw Object.assign(new Error('given up'), { code: 'given up' });
      }
      return await this.session.run({ [this.session.inputNames[0]!]: row });
    } finally {
      const next = this.waiting.shift();
      if (next) {
        next();
      } else {
        this.running--;
      }
    }
  }

  close(): Promise<void> {
    return this.session.release();
  }
}

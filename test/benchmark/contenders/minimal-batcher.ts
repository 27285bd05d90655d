import { batchSize } from '../models/model.js';

type Run = (rows: Float32Array<ArrayBuffer>) => Float32Array | Promise<Float32Array>;

interface Waiting {
  readonly row: Float32Array;
  readonly resolve: (output: Float32Array) => void;
}

/**
 * The baseline of P14: the least that one writes by hand to batch rows of one length. No limit, no
 * deadline, no check, no error.
 */
export class MinimalBatcher {
  private readonly waiting: Waiting[] = [];
  private isRunning = false;

  constructor(private readonly run: Run) {}

  call(row: Float32Array): Promise<Float32Array> {
    return new Promise((resolve) => {
      this.waiting.push({ row, resolve });
      if (!this.isRunning) {
        this.isRunning = true;
        setImmediate(() => void this.runAll());
      }
    });
  }

  private async runAll(): Promise<void> {
    while (this.waiting.length > 0) {
      const batch = this.waiting.splice(0, batchSize);
      const length = batch[0]!.row.length;
      const rows = new Float32Array(batch.length * length);
      batch.forEach(({ row }, index) => rows.set(row, index * length));
      const outputs = await this.run(rows);
      const width = outputs.length / batch.length;
      batch.forEach(({ resolve }, index) =>
        resolve(outputs.slice(index * width, (index + 1) * width)),
      );
    }
    this.isRunning = false;
  }
}

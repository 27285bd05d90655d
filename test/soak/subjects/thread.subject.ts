import { resolve } from 'node:path';
import { Batch, createServing, Tensor } from 'nestjs-serving';
import { answerTo, KEYS } from '../rows.js';
import type { Subject } from '../subject.js';

/** A module file whose batches run in two threads, and whose rows are tensors. */
export async function threadSubject(): Promise<Subject> {
  const serving = createServing({
    name: 'thread',
    model: { useFile: resolve('test/fixtures/workers/soak.mjs') },
    recovery: { idempotent: true },
    batchSize: 64,
    batchKeys: [...KEYS],
    partitions: 2,
    queue: { maxRows: 4000 },
  });
  await serving.start();
  return {
    name: 'thread',
    serving,
    share: 3,
    keys: KEYS,
    faults: ['throws'],
    isolates: true,
    tellsRuns: false,
    input: (rows, key) =>
      Batch.concatenate([new Tensor('float64', Float64Array.from(rows), [rows.length, 1])]).withKey(
        key,
      ),
    wrong: (output, rows, key) =>
      output instanceof Tensor && output.data.length === rows.length
        ? rows.filter((row, index) => output.data[index] !== answerTo(row, key)).length
        : rows.length,
  };
}

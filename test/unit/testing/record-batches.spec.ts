import { expect, it } from '@jest/globals';
import { createServing, type Serving } from 'nestjs-serving';
import { recordBatches, settle } from 'nestjs-serving/testing';

it('recordBatches lists the batches that have ended, also failed ones', async () => {
  const fault = new Error('out of memory');
  const serving = createServing({
    name: 'letters',
    batchSize: 2,
    model: {
      useFactory: () => (rows: string[]) => (rows.includes('c') ? Promise.reject(fault) : rows),
    },
  });
  await serving.start();
  const batches = recordBatches(serving);

  await Promise.allSettled(['a', 'b', 'c'].map((row) => serving.batchedRun(row)));
  await settle();

  expect(batches.map(({ rows, fill, reason, error }) => ({ rows, fill, reason, error }))).toEqual([
    { rows: 2, fill: 1, reason: 'full', error: undefined },
    { rows: 1, fill: 0.5, reason: 'idle', error: expect.objectContaining({ cause: fault }) },
  ]);
  await serving.close();
});

it.each([undefined, 'letters', {}])('[FU77] recordBatches refuses %p', (source) => {
  expect(() => recordBatches(source as unknown as Serving)).toThrow(
    /^recordBatches was given .+; give it a serving, or the ServingService/,
  );
});

import { describe, expect, it } from '@jest/globals';
import { Batch, type LocalServing } from 'nestjs-serving';
import { collect } from '../../fixtures/async/collect.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';

const rowsOf = (call: string, count: number): string[] =>
  Array.from({ length: count }, (_, i) => `${call}${i + 1}`);

describe('A streamed call with more rows than a batch', () => {
  useVirtualTime();
  const start = useServings();

  async function served(partitions: number): Promise<{ runs: string[][]; serving: LocalServing }> {
    const runs: string[][] = [];
    const serving = await start({
      name: 'same',
      batchSize: 4,
      partitions,
      model: { useFactory: () => (rows: string[]) => (runs.push(rows), rows) },
    });
    return { runs, serving };
  }

  it.each([1, 3])(
    '[W15] A streamed call runs all its rows before those of later calls, on %i partitions',
    async (partitions) => {
      const { runs, serving } = await served(partitions);
      const calls = [rowsOf('a', 10), rowsOf('b', 3), rowsOf('c', 1)];

      await Promise.all(calls.map((rows) => collect(serving.stream(Batch.stack(rows)))));

      expect(runs.flat()).toEqual(calls.flat());
      expect(runs.map(({ length }) => length)).toEqual([4, 4, 4, 2]);
    },
  );

  it('[W15] A streamed list of batches keeps its place in the queue as one batch does', async () => {
    const { runs, serving } = await served(1);
    const pieces = [rowsOf('a', 3), rowsOf('b', 3), rowsOf('c', 3)];
    const input = pieces.map((rows) => Batch.stack(rows));

    await Promise.all([input, 'last'].map((rows) => collect(serving.stream(rows))));

    expect(runs.flat()).toEqual([...pieces.flat(), 'last']);
  });

  it('[W15] A slow reader has at most three batches of one partition in progress', async () => {
    const { runs, serving } = await served(1);
    const events = serving.stream(Batch.stack(rowsOf('a', 1000)))[Symbol.asyncIterator]();

    await events.next();
    await turn();
    await turn();
    expect(runs).toHaveLength(3);
    await expect(serving.batchedRun('other')).resolves.toBe('other');

    await events.return?.();
  });
});

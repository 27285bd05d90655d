import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  BatchFailedError,
  createServing,
  InvalidOutputError,
  type ServingHandler,
} from 'nestjs-serving';
import { collect } from '../../fixtures/async/collect.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';

/** Resolves with twice the number. A negative number is rejected. */
async function doubled(row: number): Promise<number> {
  await turn();
  if (row < 0) {
    throw new RangeError(`${row} is negative`);
  }
  return row * 2;
}

class Doubling implements ServingHandler {
  init(): void {}

  handleBatch(batch: Batch): { output: unknown; metadata: string } {
    return { output: (batch.consume() as number[]).map(doubled), metadata: 'said' };
  }
}

describe('A batch function that returns promises', () => {
  useVirtualTime();
  const start = useServings();
  const list = { name: 'list', model: { useFactory: () => (rows: number[]) => rows.map(doubled) } };

  it('[W5] A call with several rows gets the values of their promises in order', async () => {
    const serving = await start(list);

    await expect(serving.batchedRun(Batch.stack([1, 2, 3]))).resolves.toEqual([2, 4, 6]);
    await expect(serving.run(Batch.stack([1, 2, 3]))).resolves.toEqual([2, 4, 6]);
  });

  it('[W5] A rejected promise fails only the call of its own row', async () => {
    const serving = await start(list);

    const replies = await Promise.allSettled([1, -2, 3].map((row) => serving.batchedRun(row)));

    expect(replies).toEqual([
      { status: 'fulfilled', value: 2 },
      { status: 'rejected', reason: new RangeError('-2 is negative') },
      { status: 'fulfilled', value: 6 },
    ]);
  });

  it('[W5] A promise that is rejected without an Error fails its call with a typed error', async () => {
    const serving = await start({
      name: 'thrown text',
      model: { useFactory: () => (rows: string[]) => rows.map((row) => Promise.reject(row)) },
    });

    const error: unknown = await serving.batchedRun('no').catch((reason: unknown) => reason);

    expect(error).toBeInstanceOf(BatchFailedError);
    expect(error).toMatchObject({
      message: 'The promise of a row was rejected: no',
      cause: 'no',
    });
  });

  it('[W5] A list of promises of the wrong length fails its batch with both numbers', async () => {
    const serving = await start({
      name: 'short',
      model: { useFactory: () => (rows: number[]) => rows.slice(1).map(doubled) },
    });

    await expect(serving.batchedRun(Batch.stack([1, 2]))).rejects.toThrow(InvalidOutputError);
  });

  it('[W5] The promises of a class are awaited as those of a function are', async () => {
    const serving = await start(
      createServing({
        name: 'class',
        model: { useClass: Doubling },
        postprocess: (output, { metadata }) => [output, metadata],
      }),
    );

    await expect(serving.batchedRun(Batch.stack([1, 2]))).resolves.toEqual([[2, 4], 'said']);
  });

  it('[W5] The promises of a step are awaited before its rows reach their callers', async () => {
    const serving = await start({
      name: 'steps',
      model: {
        useFactory: () =>
          async function* (rows: number[]) {
            yield rows.map(doubled);
            yield rows;
          },
      },
    });

    const events = await collect(serving.stream(Batch.stack([1, 2])));

    expect(events.map((event) => 'output' in event && event.output)).toEqual([
      [2, 4],
      [1, 2],
    ]);
    await expect(serving.batchedRun(-1)).rejects.toThrow(new RangeError('-1 is negative'));
  });

  it('[W5] A row that cannot be read fails only its own call', async () => {
    const { proxy, revoke } = Proxy.revocable({}, {});
    revoke();
    const serving = await start({
      name: 'unreadable',
      model: { useFactory: () => (rows: number[]) => rows.map((row) => (row === 0 ? proxy : row)) },
    });

    const replies = await Promise.allSettled([0, 1].map((row) => serving.batchedRun(row)));

    expect(replies.map(({ status }) => status)).toEqual(['rejected', 'fulfilled']);
  });
});

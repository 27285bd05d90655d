import { describe, expect, it } from '@jest/globals';
import { Batch, DONE, defineServing, withMetadata } from 'nestjs-serving';
import { collect } from '../../fixtures/async/collect.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { useVirtualTime } from '../../fixtures/async/virtual-time.js';

/** Counts its batches and replies with the context of postprocess. */
function counted(): ReturnType<typeof defineServing> {
  let batches = 0;
  return defineServing({
    name: 'counted',
    batchSize: 2,
    model: { useFactory: () => (rows: string[]) => withMetadata(rows, ++batches) },
    postprocess: (_output: unknown, context) => context,
  });
}

const rowsOf = (count: number): Batch =>
  Batch.stack(Array.from({ length: count }, (_, i) => `${i}`));

describe('The metadata that postprocess receives', () => {
  useVirtualTime();
  const start = useServings();
  const inThree = {
    isSplit: true,
    info: undefined,
    metadata: [
      { offset: 0, rows: 2, metadata: 1 },
      { offset: 2, rows: 2, metadata: 2 },
      { offset: 4, rows: 1, metadata: 3 },
    ],
  };

  it('[W12] A call in one batch gets the metadata of that batch', async () => {
    const serving = await start(counted());

    const context = await serving.batchedRun(rowsOf(2));

    expect(context).toEqual({ isSplit: false, info: undefined, metadata: 1 });
  });

  it('[W12] A split call gets the metadata of every batch with the rows of each', async () => {
    const serving = await start(counted());

    await expect(serving.batchedRun(rowsOf(5))).resolves.toEqual(inThree);
  });

  it('[W12] An inline run in several pieces gets the metadata of every piece', async () => {
    const serving = await start(counted());

    await expect(serving.run(rowsOf(5))).resolves.toEqual(inThree);
  });

  it('[W12] A call with a sequence of batches gets the metadata of all, in the order of the call', async () => {
    const serving = await start(counted());

    const context = await serving.run([rowsOf(3), rowsOf(1)]);

    expect(context).toMatchObject({
      isSplit: true,
      metadata: [
        { offset: 0, rows: 2, metadata: 1 },
        { offset: 2, rows: 1, metadata: 2 },
        { offset: 3, rows: 1, metadata: 3 },
      ],
    });
    await expect(serving.run([rowsOf(1)])).resolves.toMatchObject({ isSplit: false, metadata: 4 });
  });

  it('[W12] Calls that share a run get the metadata of every batch', async () => {
    const serving = await start({
      ...counted(),
      deduplication: { singleFlight: true, key: () => 'same' },
    });

    const contexts = await Promise.all(
      [rowsOf(5), rowsOf(5)].map((rows) => serving.batchedRun(rows)),
    );

    expect(contexts).toEqual([inThree, inThree]);
  });

  it('[W12] A call whose steps ran in several batches gets the last metadata of each', async () => {
    const serving = await start({
      ...counted(),
      model: {
        useFactory: () =>
          function* (rows: string[]) {
            yield withMetadata(rows, 'first');
            yield withMetadata(rows, `last of ${rows[0]}`);
            yield rows.map(() => DONE);
          },
      },
    });

    const context = await serving.batchedRun(rowsOf(3));

    expect(context).toMatchObject({
      metadata: [
        { offset: 0, rows: 2, metadata: 'last of 0' },
        { offset: 2, rows: 1, metadata: 'last of 2' },
      ],
    });
  });

  it('[W12] Each output of a stream has the metadata of its own batch', async () => {
    const serving = await start(counted());

    const events = await collect(serving.stream(rowsOf(3)));

    expect(events.map((event) => 'output' in event && event.output)).toEqual([
      { isSplit: false, info: undefined, metadata: 1 },
      { isSplit: false, info: undefined, metadata: 2 },
    ]);
  });

  it('[W12] The type of the metadata follows from isSplit', async () => {
    const serving = await start(
      defineServing({
        ...counted(),
        postprocess: (_output: unknown, { isSplit, metadata }) =>
          isSplit ? metadata.map(({ rows }) => rows) : [metadata],
      }),
    );

    await expect(serving.batchedRun(rowsOf(3))).resolves.toEqual([2, 1]);
  });
});

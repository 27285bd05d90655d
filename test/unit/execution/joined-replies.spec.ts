import { afterEach, describe, expect, it } from '@jest/globals';
import { Batch, InvalidOutputError, type ServingOptions, type Tensor } from 'nestjs-serving';
import { BatchScript, type HeldBatch } from 'nestjs-serving/testing';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { floats } from '../../fixtures/values/tensors.js';

const memoryOf = ({ data }: Tensor) => (data as Float32Array).buffer;

describe('Replies of calls that share batches', () => {
  let script: BatchScript;
  // Before the servings are closed, which wait for their batches.
  afterEach(() => script.release((rows) => [...(rows as readonly unknown[])]));
  const serve = useServings();

  const start = (options: Partial<ServingOptions> = {}) => {
    script = new BatchScript();
    return serve(script.createServing<unknown, unknown>({ name: 'shared', ...options }));
  };
  const next = async (count: number): Promise<HeldBatch[]> => {
    const batches: HeldBatch[] = [];
    while (batches.length < count) {
      batches.push(await script.next());
    }
    return batches;
  };

  it('[4.6] Only rows of one key and signature share a batch', async () => {
    const serving = await start({ batchKeys: ['default', 'en'], partitions: 4 });
    const x = floats([1], [1]);
    const inputs = [
      Batch.stack(['a']),
      Batch.concatenate([x]),
      Batch.stack(['b']).withKey('en'),
      Batch.stack([1, 2]),
      Batch.concatenate([{ x }]),
      Batch.concatenate([floats([2], [2, 3])]),
    ];
    const replies = inputs.map((input) => serving.batchedRun(input));
    const batches = await next(4);

    expect(batches.map(({ key, rows }) => [key, rows])).toEqual([
      ['default', ['a', 1, 2]],
      ['default', floats([3], [1, 2, 3])],
      ['en', ['b']],
      ['default', { x }],
    ]);
    batches.forEach((batch) => batch.finish(batch.rows));
    expect(await Promise.all(replies)).toEqual([
      ['a'],
      x,
      ['b'],
      [1, 2],
      { x },
      floats([2], [2, 3]),
    ]);
  });

  it('[4.5] A call is answered in the order of its rows, in whatever order their batches finish', async () => {
    const serving = await start({
      batchSize: 2,
      partitions: 3,
      postprocess: (output: unknown, { metadata }: { metadata: unknown }) => ({ output, metadata }),
    });
    const reply = serving.batchedRun(Batch.stack(['a', 'b', 'c', 'd', 'e']));
    const [first, second, third] = await next(3);

    third!.finish(['E'], 'third');
    first!.finish(['A', 'B'], 'first');
    second!.finish(['C', 'D'], 'second');

    expect(await reply).toEqual({
      output: ['A', 'B', 'C', 'D', 'E'],
      metadata: [
        { offset: 0, rows: 2, metadata: 'first' },
        { offset: 2, rows: 2, metadata: 'second' },
        { offset: 4, rows: 1, metadata: 'third' },
      ],
    });
  });

  it('[4.5] [4.6] A batch has the rows of its calls in their order, and each caller gets its own', async () => {
    const serving = await start({ batchSize: 4 });
    const replies = [
      ['a', 'b', 'c'],
      ['d', 'e'],
    ].map((rows) => serving.batchedRun(Batch.stack(rows)));
    const first = await script.next();
    expect(first.rows).toEqual(['a', 'b', 'c', 'd']);
    first.finish(['A', 'B', 'C', 'D']);
    const second = await script.next();
    expect(second.rows).toEqual(['e']);
    second.finish(['E']);

    expect(await Promise.all(replies)).toEqual([
      ['A', 'B', 'C'],
      ['D', 'E'],
    ]);
  });

  it('[6.1] A call fails with the first of its batches that fails', async () => {
    const serving = await start({ batchSize: 1, partitions: 2 });
    const reply = serving.batchedRun(Batch.stack(['a', 'b']));
    const [first, second] = await next(2);
    const error = new Error('out of memory');

    second!.fail(error);
    first!.fail(new Error('again'));

    await expect(reply).rejects.toMatchObject({ cause: error });
  });

  it('[6.2] A call fails with the error in place of one of its rows', async () => {
    const serving = await start();
    const error = new RangeError('b is no number');
    const replies = Promise.allSettled([
      serving.batchedRun(Batch.stack(['a', 'b'])),
      serving.batchedRun('c'),
    ]);
    (await script.next()).finish([1, error, 3]);

    expect(await replies).toEqual([
      { status: 'rejected', reason: error },
      { status: 'fulfilled', value: 3 },
    ]);
  });

  it('[6.3] A call fails when its batches gave outputs that cannot be joined', async () => {
    const serving = await start({ batchSize: 1, partitions: 2 });
    const reply = serving.batchedRun(Batch.stack(['a', 'b']));
    const [first, second] = await next(2);
    const error = reply.catch((reason: unknown) => reason);

    first!.finish(floats([1, 2], [1, 2]));
    second!.finish(floats([1, 3], [1, 2, 3]));

    expect(await error).toBeInstanceOf(InvalidOutputError);
    expect(String(await error)).toContain('[float32[rows, 2]] and [float32[rows, 3]]');
  });

  it('[4.6] Each caller gets tensors in memory of its own', async () => {
    const serving = await start();
    const replies = ['a', 'b'].map((row) => serving.batchedRun(row) as Promise<Tensor>);
    (await script.next()).finish(floats([2], [1, 2]));
    const [mine, yours] = await Promise.all(replies);

    expect([mine, yours]).toEqual([floats([1], [1]), floats([1], [2])]);
    expect(memoryOf(mine!)).not.toBe(memoryOf(yours!));
  });
});

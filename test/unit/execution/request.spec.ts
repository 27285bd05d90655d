import { describe, expect, it } from '@jest/globals';
import { Batch, InvalidOutputError } from 'nestjs-serving';
import { EventHub } from '../../../lib/core/events/event-hub.js';
import { BatchRun, BatchRunner } from '../../../lib/core/execution/batch-run.js';
import { releaseOutput, ReplyRequest } from '../../../lib/core/execution/request.js';
import { Lanes, type ServingLane } from '../../../lib/core/execution/lanes.js';
import { floats } from '../../fixtures/values/tensors.js';

const options = { batchSize: 32, batchTimeout: 0, runSize: Infinity };
const lanes = new Lanes(new Map([['default', options]]), options);
const laneOf = (batch: Batch): ServingLane => lanes.laneOf(batch);
const requestFor = (batch: Batch): ReplyRequest => new ReplyRequest(batch, laneOf(batch));
const requestOf = (...rows: string[]): ReplyRequest => requestFor(Batch.stack(rows));
const outputOf = async (request: ReplyRequest): Promise<unknown> => {
  const { rows, metadata } = await request.reply;
  return { output: releaseOutput(rows), metadata };
};

describe('BatchRequest', () => {
  it('[4.6] A request waits in the lane of its key and signature', () => {
    const x = floats([1], [1]);

    expect(laneOf(Batch.stack(['a']))).toBe(laneOf(Batch.stack([1, 2])));
    expect(laneOf(Batch.concatenate([x]))).toBe(laneOf(Batch.concatenate([floats([2], [2, 3])])));
    const others = [
      Batch.stack(['a']),
      Batch.stack(['a']).withKey('en'),
      Batch.concatenate([x]),
      Batch.concatenate([{ x }]),
    ];
    expect(new Set(others.map(laneOf)).size).toBe(others.length);
  });

  it('[4.5] A request is answered in the order of its rows, in whatever order their batches finish', async () => {
    const request = requestOf('a', 'b', 'c', 'd', 'e');

    request.answer(3, Batch.stack(['D', 'E']), 'second');
    request.answer(0, Batch.stack(['A']), 'first');
    request.answer(1, Batch.stack(['B', 'C']), 'third');

    expect(await outputOf(request)).toEqual({
      output: ['A', 'B', 'C', 'D', 'E'],
      metadata: [
        { offset: 0, rows: 1, metadata: 'first' },
        { offset: 1, rows: 2, metadata: 'third' },
        { offset: 3, rows: 2, metadata: 'second' },
      ],
    });
  });

  it('[6.1] A request fails with the first of its batches that fails', async () => {
    const request = requestOf('a', 'b');
    const error = new Error('out of memory');

    request.fail(error);
    request.answer(0, Batch.stack(['A']), undefined);
    request.fail(new Error('again'));

    await expect(request.reply).rejects.toBe(error);
  });

  it('[6.2] A request fails with the error in place of one of its rows', async () => {
    const request = requestOf('a', 'b');
    const error = new RangeError('b is no number');

    request.answer(0, Batch.stack([1, error]), undefined);

    await expect(outputOf(request)).rejects.toBe(error);
  });

  it('[6.3] A request fails when its batches gave outputs that cannot be joined', async () => {
    const request = requestOf('a', 'b');

    request.answer(0, Batch.concatenate([floats([1, 2], [1, 2])]), undefined);
    request.answer(1, Batch.concatenate([floats([1, 3], [1, 2, 3])]), undefined);

    await expect(outputOf(request)).rejects.toThrow(InvalidOutputError);
    await expect(outputOf(request)).rejects.toThrow('[float32[rows, 2]] and [float32[rows, 3]]');
  });
});

describe('BatchRun', () => {
  const recovery = { idempotent: false, isolateFailures: false, retries: 0 };
  const runner = new BatchRunner('runs', recovery, { partitions: [] }, new EventHub());

  it('[4.5] [4.6] A batch has the parts of its requests in their order', () => {
    const [one, two] = [requestOf('a', 'b', 'c'), requestOf('d', 'e')];
    const parts = [
      { request: one, offset: 1, count: 2 },
      { request: two, offset: 0, count: 2 },
      { request: one, offset: 0, count: 1 },
    ];

    expect(new BatchRun(parts, 8, runner).batch.consume()).toEqual(['b', 'c', 'd', 'e', 'a']);
  });
});

describe('releaseOutput', () => {
  it('[4.6] Each caller gets tensors in memory of its own', () => {
    const output = Batch.concatenate([floats([2], [1, 2])]);
    const [mine, yours] = [output.slice(0, 1), output.slice(0, 1)].map(
      (rows) => releaseOutput(rows) as ReturnType<typeof floats>,
    );

    mine!.data[0] = 9;

    expect(yours).toEqual(floats([1], [1]));
  });
});

import { describe, expect, it } from '@jest/globals';
import { Batch, DONE, InvalidOutputError, type Tensor } from 'nestjs-serving';
import { EventHub } from '../../../lib/core/events/event-hub.js';
import type { ModelPort } from '../../../lib/core/partitions/onnx/model-signature.js';
import { type Partition, STEPPED } from '../../../lib/core/partitions/partition.js';
import { BatchRun, BatchRunner } from '../../../lib/core/execution/batch-run.js';
import { releaseOutput, ReplyRequest } from '../../../lib/core/execution/request.js';
import type { ServingLane } from '../../../lib/core/execution/lanes.js';
import { StreamRequest } from '../../../lib/core/execution/stream-request.js';
import { floats } from '../../fixtures/values/tensors.js';

const lane: ServingLane = {
  key: 'default',
  origin: undefined,
  limits: { batchSize: 4, runSize: 4, batchTimeout: 0 },
};
const padded: ServingLane = { ...lane, limits: { ...lane.limits, allowedSizes: [4] } };

/** A stream of these rows, alone or as part of a batch. */
function streamOf(rows: readonly unknown[], hooks?: readonly string[]): StreamRequest {
  return new StreamRequest(Batch.stack(rows), lane, undefined, hooks);
}

const recovery = { idempotent: false, isolateFailures: false, retries: 0 };
const runner = new BatchRunner(
  'runs',
  recovery,
  { partitions: [], throwsAsIs: true },
  new EventHub(),
);

function runOf(...requests: readonly StreamRequest[]): BatchRun {
  const logits: ModelPort = { name: 'logits', type: 'float32', shape: ['', ''], batchAxis: 1 };
  const signature = {
    inputs: [],
    outputs: [logits],
    fetches: ['logits'],
    states: [],
    dynamicallyQuantised: false,
  };
  return new BatchRun(
    requests.map((request) => ({ request, offset: 0, count: request.size })),
    4,
    new BatchRunner('runs', recovery, { partitions: [], signature }, new EventHub()),
  );
}

/** Ends the run with what its batch function returns, or with its error. */
async function end(run: BatchRun, result: Awaited<ReturnType<Partition['run']>> | Error) {
  const partition: Partition = {
    prefetch: 0,
    run: () => (result instanceof Error ? Promise.reject(result) : Promise.resolve(result)),
    close: async () => {},
  };
  const { settle } = await run.on(partition, 0);
  settle!();
}

/** The events of the streams until now: hooks with values, and lists of rows. */
function eventsOf(...requests: readonly StreamRequest[]): Promise<unknown[][]> {
  return Promise.all(
    requests.map(async ({ events }) => {
      const values: unknown[] = [];
      while (events.size > 0) {
        const { value } = await events.next();
        values.push('hook' in value! ? { [value.hook]: value.value } : releaseOutput(value!.rows));
      }
      return values;
    }),
  );
}

describe('BatchRun', () => {
  it.each([
    { own: true, what: 'An output that the function gave away is passed on without a copy' },
    { own: false, what: 'An output that the function may write to again is copied' },
  ])('[W4] $what', async ({ own }) => {
    const request = new ReplyRequest(Batch.stack(['a', 'b']), lane);
    const run = new BatchRun([{ request, offset: 0, count: 2 }], 4, runner);
    const output = floats([2, 1], [1, 2]);

    await end(run, { output, own });

    const { data } = releaseOutput((await request.reply).rows) as Tensor;
    expect(data).toEqual(output.data);
    expect((data as Float32Array).buffer === (output.data as Float32Array).buffer).toBe(own);
  });

  it('[8.3] A batch lists each hook with consumers once', async () => {
    const run = runOf(streamOf(['a'], ['x', 'y']), streamOf(['b']), streamOf(['c'], ['y', 'z']));

    expect(run.hooks).toEqual(['x', 'y', 'z']);
    const infos: unknown[] = [];
    const reading = { prefetch: 0, close: async () => {} };
    await run.on({ ...reading, run: async (_, info) => (infos.push(info), STEPPED) }, 3);
    expect(infos).toMatchObject([{ hooks: ['x', 'y', 'z'], size: 3, partition: 3 }]);
    expect(runOf(streamOf(['a'])).hooks).toEqual([]);
  });

  it('[8.3] Each caller gets its own rows of the hooks that it subscribed to', async () => {
    const requests = [streamOf(['a', 'b'], ['x', 'y']), streamOf(['c']), streamOf(['d'], ['y'])];
    const run = runOf(...requests);

    run.hook('x', [1, 2, 3, 4]);
    run.hook('y', floats([4, 2], [1, 2, 3, 4, 5, 6, 7, 8]));
    run.hook('z', [1, 2, 3, 4]);

    expect(await eventsOf(...requests)).toEqual([
      [{ x: [1, 2] }, { y: floats([2, 2], [1, 2, 3, 4]) }],
      [],
      [{ y: floats([1, 2], [7, 8]) }],
    ]);
  });

  it("[8.3] The rows of a hook of a model are found on the model's batch axis", async () => {
    const requests = [streamOf(['a'], ['logits']), streamOf(['b'], ['logits'])];

    runOf(...requests).hook('logits', floats([3, 2], [1, 2, 3, 4, 5, 6]));

    expect(await eventsOf(...requests)).toEqual([
      [{ logits: floats([3, 1], [1, 3, 5]) }],
      [{ logits: floats([3, 1], [2, 4, 6]) }],
    ]);
  });

  it.each<[string, unknown]>([
    ['too few values', [1, 2]],
    ['too many values', [1, 2, 3, 4]],
    ['one value', 1],
    ['nothing', undefined],
    ['tensors with too few rows', floats([2], [1, 2])],
    [
      'tensors with a name that has too many',
      { x: floats([3], [1, 2, 3]), y: floats([4], [1, 2, 3, 4]) },
    ],
  ])('[8.3] A hook with %s is refused and reaches no caller', async (_, value) => {
    const requests = [streamOf(['a', 'b'], ['x']), streamOf(['c'], ['x'])];

    expect(() => runOf(...requests).hook('x', value)).toThrow(InvalidOutputError);
    expect(() => runOf(...requests).hook('x', value)).toThrow('Hook "x": ');

    expect(await eventsOf(...requests)).toEqual([[], []]);
  });

  it.each<[string, unknown, string]>([
    ['too few values', [1, 2], 'the 3 rows of its batch; it yielded a list of 2'],
    ['too many values', [1, 2, 3, 4], 'it yielded a list of 4'],
    ['one value', 'abc', 'it yielded'],
    ['nothing', undefined, 'it yielded undefined'],
    ['tensors', floats([3], [1, 2, 3]), 'it yielded'],
  ])('[8.4] A step with %s is refused and reaches no caller', async (_, value, message) => {
    const requests = [streamOf(['a', 'b']), streamOf(['c'])];

    expect(() => runOf(...requests).step(value, undefined)).toThrow(InvalidOutputError);
    expect(() => runOf(...requests).step(value, undefined)).toThrow(message);

    expect(await eventsOf(...requests)).toEqual([[], []]);
  });

  it('[8.4] Each caller gets its own rows of a step', async () => {
    const requests = [streamOf(['a', 'b']), streamOf(['c'])];
    const run = runOf(...requests);

    run.step([1, DONE, 3], undefined);
    run.step([4, 5, DONE], undefined);
    await end(run, STEPPED);

    expect(await eventsOf(...requests)).toEqual([
      [
        [1, undefined],
        [4, undefined],
      ],
      [[3]],
    ]);
    expect(requests.map(({ isOver }) => isOver)).toEqual([true, true]);
  });

  it('[8.4] A batch reports for each row whether its caller still waits', async () => {
    const requests = [streamOf(['a', 'b']), streamOf(['c'])];
    const run = runOf(...requests);
    const waiting = (): boolean[] => [0, 1, 2, 3, -1].map((row) => run.isWaiting(row));

    expect(waiting()).toEqual([true, true, true, false, false]);
    run.step([DONE, 2, 3], undefined);
    expect(waiting()).toEqual([false, true, true, false, false]);
    requests[1]!.fail(new Error('left'));
    expect(waiting()).toEqual([false, true, false, false, false]);
    await end(run, STEPPED);
    expect(waiting()).toEqual([false, false, false, false, false]);
  });

  it('[8.4] A step includes the padding rows, for which no caller waits', () => {
    const request = new StreamRequest(Batch.concatenate([floats([3], [1, 2, 3])]), padded);
    const run = new BatchRun([{ request, offset: 0, count: 3 }], 4, runner);

    expect(() => run.step([1, 2, 3], undefined)).toThrow('the 4 rows of its batch');
    run.step([1, 2, 3, DONE], undefined);

    expect([run.batch.padding, run.isWaiting(2), run.isWaiting(3)]).toEqual([1, true, false]);
  });

  it('[8.4] [6.1] A failed batch fails only the requests with rows that had not ended', async () => {
    const error = new Error('out of memory');
    const split = new ReplyRequest(Batch.stack(['a', 'b']), lane);
    const [done, waiting] = [streamOf(['c']), streamOf(['d'])];
    const run = new BatchRun(
      [split, done, waiting].map((request) => ({ request, offset: 0, count: 1 })),
      4,
      runner,
    );

    run.step([DONE, DONE, 'd1'], undefined);
    await end(run, error);
    split.answer(1, Batch.stack(['B']), undefined);

    expect(releaseOutput((await split.reply).rows)).toEqual([[], 'B']);
    expect(await done.events.next()).toEqual({ done: true, value: undefined });
    expect(await eventsOf(waiting)).toEqual([[['d1']]]);
    await expect(waiting.events.next()).rejects.toBe(error);
  });
});

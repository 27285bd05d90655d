import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  BatchFailedError,
  type BatchEndEvent,
  DONE,
  InvalidInputError,
  type LocalServing,
  type SequenceStepEvent,
  type ServingOptions,
  SlowConsumerError,
} from 'nestjs-serving';
import { failureOf } from '../../../fixtures/async/failure-of.js';
import { iterated, outputsOf } from '../../../fixtures/async/streams.js';
import { later, turn, useVirtualTime } from '../../../fixtures/async/virtual-time.js';
import { type CountedRow, CountingModel } from '../../../fixtures/partitions/counting-model.js';
import { useServings } from '../../../fixtures/serving/use-servings.js';

const row = (name: string, steps: number, more: Partial<CountedRow> = {}): CountedRow => ({
  name,
  steps,
  ...more,
});
const valuesOf = (name: string, steps: number): string[] =>
  Array.from({ length: steps }, (_, i) => `${name}${i}`);

describe('A serving of sequences', () => {
  useVirtualTime();
  const startServing = useServings();

  /** A serving with four places, and its model. */
  async function start(
    options: Partial<ServingOptions<CountedRow>> = {},
  ): Promise<[LocalServing, CountingModel]> {
    const model = new CountingModel();
    const serving = await startServing({
      batchSize: 4,
      model: { useFactory: () => model, sequence: {} },
      ...(options as ServingOptions),
      name: 'counter',
    });
    return [serving, model];
  }

  it('[13.1] A call that comes while others run joins them, and the first of them to end is answered first', async () => {
    const [serving] = await start();
    const order: string[] = [];
    const calls = [row('a', 50), row('b', 3)].map(async (input) => {
      await expect(serving.batchedRun(input)).resolves.toEqual(valuesOf(input.name, input.steps));
      order.push(input.name);
    });
    await calls[1];
    calls.push(serving.batchedRun(row('c', 5)).then(() => void order.push('c')));
    await Promise.all(calls);

    expect(order).toEqual(['b', 'c', 'a']);
  });

  it('[E8] The rows of all keys of a partition cost no more than maxCost together', async () => {
    const present = new Map<string, number>();
    let most = 0;
    const serving = await startServing({
      name: 'keys',
      batchSize: 16,
      batchKeys: ['en', 'de', 'fr'],
      model: {
        useFactory: ({ key }) => ({
          start: (rows: number[]) => rows.map((size) => ({ size, next: 0 })),
          step: async (states: { size: number; next: number }[]) => {
            const cost = states.reduce((sum, { size, next }) => sum + size + next + 1, 0);
            present.set(key, cost);
            most = Math.max(
              most,
              [...present.values()].reduce((sum, own) => sum + own, 0),
            );
            await turn();
            present.delete(key);
            return states.map((state) => (state.next++ < 3 ? key : DONE));
          },
          cost: (size: number, values: number) => size + values,
        }),
        sequence: { maxCost: 10 },
      },
    });
    const calls = ['en', 'de', 'fr'].flatMap((key) =>
      Array.from({ length: 4 }, () => serving.batchedRun(5, { key })),
    );

    expect((await Promise.all(calls)).map((values) => (values as string[]).join(' '))).toEqual(
      ['en', 'de', 'fr'].flatMap((key) => Array(4).fill(`${key} ${key} ${key}`)),
    );
    expect(most).toBeLessThanOrEqual(10);
  });

  it('[13.12] Each step emits an event with its rows, the rows that wait in the partition, and its run time', async () => {
    const steps: SequenceStepEvent[] = [];
    const serving = await startServing({
      name: 'counter',
      model: { useFactory: () => new CountingModel(), sequence: { joins: { rows: 1 } } },
    });
    serving.eventsOf('sequence:step').subscribe((event) => steps.push(event));

    await Promise.all([serving.batchedRun(row('a', 3)), serving.batchedRun(row('b', 1))]);

    expect(steps).toEqual(
      [
        [1, 1],
        [2, 0],
        [2, 0],
        [1, 0],
      ].map(([rows, waiting]) => ({
        type: 'sequence:step',
        serving: 'counter',
        version: '1',
        key: 'default',
        partition: 0,
        rows,
        waiting,
        runTime: expect.any(Number),
      })),
    );
  });

  it('[13.12] Steps that nobody observes, and those of a warm-up, emit no event', async () => {
    const steps: unknown[] = [];
    const model = new CountingModel();
    const note = (event: unknown): void => void steps.push(event);
    subscribe('nestjs-serving:sequence:step', note);
    const serving = await startServing({
      name: 'counter',
      warmUp: [row('w', 3)],
      model: { useFactory: () => model, sequence: {} },
    });
    unsubscribe('nestjs-serving:sequence:step', note);

    await serving.batchedRun(row('a', 3));

    expect(model.log.length).toBeGreaterThan(0);
    expect(steps).toEqual([]);
  });

  it('[13.1] No more rows run at once than there are places, and the others wait in the queue', async () => {
    const [serving, model] = await start({ batchSize: 2 });
    const calls = 'abcde'.split('').map((name) => serving.batchedRun(row(name, 3)));
    await turn();
    expect(serving.queued).toBe(3);
    await Promise.all(calls);

    const present = model.log.filter((line) => line.startsWith('step'));
    expect(present.map((line) => line.split(' ').length - 1)).not.toContain(3);
    expect(serving.queued).toBe(0);
  });

  it('[13.1] The rows that wait join by priority', async () => {
    const [serving, model] = await start({ batchSize: 1 });
    const calls = [
      serving.batchedRun(row('a', 1)),
      serving.batchedRun(row('b', 1)),
      serving.batchedRun(row('c', 1), { priority: 1 }),
    ];
    await Promise.all(calls);

    expect(model.log.filter((line) => line.startsWith('start'))).toEqual([
      'start c',
      'start a',
      'start b',
    ]);
  });

  it('[13.2] A stream has the values of a row one by one, and batchedRun the list of them', async () => {
    const [serving] = await start();
    const [events, list, empty] = await Promise.all([
      iterated(serving.stream(row('a', 3))),
      serving.batchedRun(row('b', 2, { marked: true })),
      serving.batchedRun(row('c', 0)),
    ]);

    expect(events).toEqual(
      valuesOf('a', 3).map((output) => ({
        batch: { offset: 0, rows: 1 },
        output,
        metadata: undefined,
      })),
    );
    expect([list, empty]).toEqual([['b0', 'b1'], []]);
  });

  it('[13.2] A call with several rows has a list of lists, and its stream the values in the order of the steps', async () => {
    const [serving] = await start({ batchSize: 2 });
    const rows = Batch.stack([row('a', 3), row('b', 1), row('c', 2)]);
    const [list, events] = [await serving.batchedRun(rows), await iterated(serving.stream(rows))];

    expect(list).toEqual([valuesOf('a', 3), valuesOf('b', 1), valuesOf('c', 2)]);
    expect(events.map(({ batch, output }) => [batch.offset, ...(output as string[])])).toEqual([
      [0, 'a0'],
      [1, 'b0'],
      [0, 'a1'],
      [0, 'a2'],
      [2, 'c0'],
      [2, 'c1'],
    ]);
  });

  it('[13.3] A caller that leaves is answered at once, and its place is free at the next step', async () => {
    const [serving, model] = await start({ batchSize: 1 });
    const leaving = new AbortController();
    const left = failureOf(serving.batchedRun(row('a', 1000), { signal: leaving.signal }));
    const next = serving.batchedRun(row('b', 1));
    await turn();
    leaving.abort(new Error('gone'));

    await expect(left).resolves.toEqual(new Error('gone'));
    await expect(next).resolves.toEqual(['b0']);
    expect(model.counts).toEqual({ started: 2, ended: 2 });
    expect(model.log).toContain('end a cancelled');
  });

  it('[13.3] A reader that falls too far behind fails, and the others go on', async () => {
    const [serving, model] = await start();
    const events = serving.stream(row('a', 2000))[Symbol.asyncIterator]();
    await events.next();
    await expect(serving.batchedRun(row('b', 1500))).resolves.toHaveLength(1500);

    const read = async (): Promise<void> => {
      while (!(await events.next()).done);
    };
    await expect(read()).rejects.toThrow(SlowConsumerError);
    expect(model.log).toContain('end a cancelled');
  });

  it('[13.3] A deadline ends a row while it runs', async () => {
    const [serving, model] = await start();
    const late = failureOf(serving.batchedRun(row('a', 1e9), { timeout: 50 }));
    await later(50);

    await expect(late).resolves.toMatchObject({ code: 'SERVING_DEADLINE_EXCEEDED' });
    await turn();
    await turn();
    expect(model.log.at(-1)).toBe('end a cancelled');
  });

  it('[13.4] A step that throws fails the calls of all present rows, and later calls run', async () => {
    const [serving, model] = await start({ recovery: { idempotent: true } });
    model.fail({ step: new Error('no memory') });
    const failed = await Promise.all(
      ['a', 'b'].map((name) => failureOf(serving.batchedRun(row(name, 2)))),
    );

    expect(failed).toEqual([expect.any(BatchFailedError), expect.any(BatchFailedError)]);
    expect(model.log.filter((line) => line.startsWith('step'))).toHaveLength(1);
    model.fail({ step: undefined });
    await expect(serving.batchedRun(row('c', 1))).resolves.toEqual(['c0']);
  });

  it('[13.4] The Error of a row fails its own call as it is', async () => {
    const [serving] = await start();
    const calls = Promise.all([
      failureOf(serving.batchedRun(row('a', 9, { failsAt: 2 }))),
      serving.batchedRun(row('b', 5)),
    ]);

    await expect(calls).resolves.toEqual([new RangeError('a2'), valuesOf('b', 5)]);
  });

  it('[13.8] A stream of one row has the hooks that it asks for, between its values', async () => {
    const [serving, model] = await start();
    model.hook = 'h';
    const [a, b] = await Promise.all([
      iterated(serving.stream(row('a', 2), { hooks: ['h'] })),
      iterated(serving.stream(row('b', 1), { hooks: ['other'] })),
    ]);

    expect(outputsOf(a)).toEqual([{ h: 'a!' }, { h: 'a0' }, 'a0', { h: 'a1' }, 'a1', { h: 'a2' }]);
    expect(outputsOf(b)).toEqual(['b0']);
  });

  it('[13.8] A call of several rows cannot have hooks, since its rows run apart', async () => {
    const [serving] = await start();
    const rows = Batch.ofValues([row('a', 1), row('b', 1)]);

    await expect(iterated(serving.stream(rows as never, { hooks: ['h'] }))).rejects.toThrow(
      new InvalidInputError(
        'Serving "counter": a call with hooks is never split, and its 2 rows are more than the ' +
          'batch size of 1',
      ),
    );
  });

  it('[13.8] Each row is reported as a batch of its own that joins, with its steps and run time', async () => {
    const [serving] = await start();
    const ended: BatchEndEvent[] = [];
    serving.eventsOf('batch:end').subscribe((event) => ended.push(event));
    await Promise.all([row('a', 1), row('b', 3)].map((input) => serving.batchedRun(input)));
    await turn();

    expect(ended.map(({ rows, reason, steps }) => [rows, reason, steps])).toEqual([
      [1, 'join', 1],
      [1, 'join', 3],
    ]);
  });

  it('[13.8] The times of rows do not teach admission: a call with a short timeout is taken', async () => {
    const [serving] = await start({ batchSize: 1 });
    const slow = { start: () => [0], step: () => later(100).then(() => [DONE]) };
    const own = await startServing({
      name: 'slow',
      batchSize: 1,
      model: { useFactory: () => slow, sequence: {} },
    });
    for (let i = 0; i < 10; i++) {
      await own.batchedRun(i);
    }
    const calls = ['a', 'b'].map((name) => own.batchedRun(name, { timeout: 150 }));

    await expect(calls[0]).resolves.toEqual([]);
    await expect(calls[1]).rejects.toMatchObject({ code: 'SERVING_DEADLINE_EXCEEDED' });
    await serving.close();
  });

  it('[13.8] A warm-up runs one step of each example', async () => {
    const [, model] = await start({ warmUp: [row('a', 5), row('b', 5)] });

    expect(model.log).toEqual([
      'start a',
      'step! a',
      'end a cancelled',
      'start b',
      'step! b',
      'end b cancelled',
    ]);
  });

  it('[13.8] A row of run takes a place among the rows of other calls', async () => {
    const models: CountingModel[] = [];
    const serving = await startServing({
      name: 'counter',
      model: { useFactory: () => models[models.push(new CountingModel()) - 1]!, sequence: {} },
    });
    await Promise.all([serving.run(row('a', 1)), serving.batchedRun(row('b', 1))]);

    expect(models.map(({ log }) => log)).toEqual([
      ['start a b', 'step! a b', 'step a b', 'end a ended', 'end b ended'],
    ]);
  });

  it('[13.8] Each key has a model of its own, and all share the places', async () => {
    const models = new Map<string, CountingModel>();
    const serving = await startServing({
      name: 'counter',
      batchSize: 2,
      batchKeys: ['x', 'y'],
      model: {
        useFactory: ({ key }) => {
          models.set(key, new CountingModel());
          return models.get(key)!;
        },
        sequence: {},
      },
    });
    const calls = ['x', 'y', 'x'].map((key, i) =>
      serving.batchedRun(Batch.stack([row('abc'[i]!, 3)]).withKey(key)),
    );
    await turn();
    expect(serving.queued).toBe(1);
    await Promise.all(calls);

    expect([...models].map(([key, { counts }]) => [key, counts.ended])).toEqual([
      ['x', 2],
      ['y', 1],
    ]);
  });

  it('[13.8] Calls with the same input can share one row', async () => {
    const [serving, model] = await start({ deduplication: { singleFlight: true } });
    const calls = ['a', 'a', 'b'].map((name) => serving.batchedRun(row(name, 2)));

    await expect(Promise.all(calls)).resolves.toEqual(['a', 'a', 'b'].map((n) => valuesOf(n, 2)));
    expect(model.counts.started).toBe(2);
  });

  it('[13.8] A call whose deadline has passed is refused', async () => {
    const [serving] = await start();

    await expect(serving.batchedRun(row('a', 1), { timeout: 0 })).rejects.toMatchObject({
      code: 'SERVING_DEADLINE_EXCEEDED',
    });
  });

  it('[13.9] Closing waits for the rows that run and those that wait', async () => {
    const [serving, model] = await start({ batchSize: 1 });
    const calls = ['a', 'b'].map((name) => serving.batchedRun(row(name, 5)));
    await turn();
    await serving.close();

    await expect(Promise.all(calls)).resolves.toEqual([valuesOf('a', 5), valuesOf('b', 5)]);
    expect(model.counts).toEqual({ started: 2, ended: 2 });
  });

  it('[13.9] At the limit of shutdown the rows that are left are answered as closed, and end', async () => {
    const [serving, model] = await start({ shutdown: { timeout: 100 } });
    const endless = failureOf(serving.batchedRun(row('a', 1e9)));
    await turn();
    const closed = serving.close();
    await later(100);

    await expect(endless).resolves.toMatchObject({ code: 'SERVING_CLOSED' });
    await closed;
    expect(model.log.at(-1)).toBe('end a cancelled');
  });
});

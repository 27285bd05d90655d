import { describe, expect, it } from '@jest/globals';
import {
  Batch,
  CallCancelledError,
  type CallEndEvent,
  type LocalServing,
  type PartitionStatus,
  type SequenceStepEvent,
  type ServingError,
  type Tensor,
  type ServingDefinition,
} from 'nestjs-serving';
import { observeWithOpenTelemetry } from 'nestjs-serving/opentelemetry';
import { HeldFunction } from '../../fixtures/batching/held-function.js';
import { CountingModel } from '../../fixtures/partitions/counting-model.js';
import { useTelemetry } from '../../fixtures/serving/telemetry.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

const echo: ServingDefinition<string> = {
  name: 'echo',
  batchSize: 2,
  model: { useFactory: () => (rows: string[]) => rows },
};

/** Fails in the stage that its input names. */
const touchy: ServingDefinition<string> = {
  name: 'touchy',
  batchSize: 1,
  queue: { maxRows: 3 },
  preprocess(text: string) {
    if (text === 'unreadable') {
      throw new TypeError('cannot read that');
    }
    if (text === 'too many') {
      return { batch: Batch.stack(['a', 'b', 'c']) };
    }
    return { batch: text === 'other' ? Batch.stack(['a']).withKey('other') : text };
  },
  model: {
    useFactory: () => (rows: string[]) =>
      rows.map((row) => {
        if (row === 'worse') {
          throw new Error('a bad batch');
        }
        return row === 'bad' ? new RangeError('a bad row') : row;
      }),
  },
};

/** The value of a histogram with this count and sum. */
const histogram = (count: number, sum: unknown): unknown => expect.objectContaining({ count, sum });

describe('metrics', () => {
  const telemetry = useTelemetry();
  const start = useServings();

  const observe = (serving: LocalServing) => observeWithOpenTelemetry(serving, telemetry());
  const depth = async (): Promise<unknown> =>
    (await telemetry().measured()).get('serving.queue.depth')!.points[0]!.value;

  it('[12.3] Calls are counted by mode and outcome', async () => {
    const serving = await start(touchy);
    const ends: CallEndEvent[] = [];
    serving.eventsOf('call:end').subscribe((event) => ends.push(event));
    observe(serving);
    await Promise.allSettled(
      ['a', 'bad', 'worse', 'unreadable', 'too many', 'other'].map((input) =>
        serving.batchedRun(input),
      ),
    );
    await serving.run('a');
    const codes = ends.map(({ error }) =>
      error === undefined ? [] : ((error as ServingError).code ?? (error as Error).name),
    );
    expect(codes.flat().toSorted()).toEqual([
      'RangeError',
      'SERVING_BATCH_FAILED',
      'SERVING_OVERLOADED',
      'SERVING_UNKNOWN_KEY',
      'TypeError',
    ]);
    const { unit, points } = (await telemetry().measured()).get('serving.call.duration')!;
    expect(unit).toBe('s');
    expect(points).toHaveLength(ends.length);
    ends.forEach(({ mode, preprocessing, waiting, running, postprocessing }, i) => {
      const type = codes[i]!.length === 0 ? {} : { 'error.type': codes[i] };
      const attributes = { 'serving.name': 'touchy', 'serving.call.mode': mode, ...type };
      const duration = (preprocessing + waiting + running + postprocessing) / 1000;
      expect(points).toContainEqual({ attributes, value: histogram(1, duration) });
    });
  });

  it('[12.3] Refused calls are counted by reason', async () => {
    const serving = await start(touchy);
    observe(serving);
    await Promise.allSettled(
      ['a', 'bad', 'worse', 'unreadable', 'too many', 'other'].map((input) =>
        serving.batchedRun(input),
      ),
    );
    const { unit, points } = (await telemetry().measured()).get('serving.call.rejections')!;
    expect(unit).toBe('{call}');
    expect(
      points.toSorted((a, b) =>
        String(a.attributes['error.type']).localeCompare(String(b.attributes['error.type'])),
      ),
    ).toEqual([
      { attributes: { 'serving.name': 'touchy', 'error.type': 'SERVING_OVERLOADED' }, value: 1 },
      { attributes: { 'serving.name': 'touchy', 'error.type': 'SERVING_UNKNOWN_KEY' }, value: 1 },
    ]);
  });

  it('[12.3] [7.3] Cancelled calls are counted apart from failed and refused ones', async () => {
    const held = new HeldFunction();
    const serving = await start({ ...echo, batchSize: 1, model: { useFactory: held.useFactory } });
    observe(serving);
    const leaving = new AbortController();
    const running = serving.batchedRun('a');
    const waiting = serving.batchedRun('b', leaving);

    leaving.abort(
      new CallCancelledError('The client has closed its connection before it was answered'),
    );

    await expect(waiting).rejects.toThrow(CallCancelledError);
    while (held.batches.length === 0) {
      await new Promise(setImmediate);
    }
    held.next().finish(['a']);
    await running;
    const measured = await telemetry().measured();
    const attributes = { 'serving.name': 'echo', 'serving.call.mode': 'batched' };
    expect(measured.get('serving.call.duration')!.points.map((point) => point.attributes)).toEqual([
      { ...attributes, 'serving.call.cancelled': true },
      attributes,
    ]);
    expect(measured.get('serving.call.rejections')).toBeUndefined();
  });

  it('[12.3] Calls that joined another are counted apart from those with rows of their own', async () => {
    const serving = await start({ ...echo, deduplication: { singleFlight: true } });
    observe(serving);
    await Promise.all(['a', 'a', 'a'].map((input) => serving.batchedRun(input)));
    const { points } = (await telemetry().measured()).get('serving.call.duration')!;
    const attributes = { 'serving.name': 'echo', 'serving.call.mode': 'batched' };
    expect(points).toEqual([
      { attributes, value: expect.objectContaining({ count: 1 }) },
      {
        attributes: { ...attributes, 'serving.call.answered_by': 'single-flight' },
        value: expect.objectContaining({ count: 2 }),
      },
    ]);
  });

  it('[N6] The cost of batches, that of their padding, and how much of the budget is taken are recorded', async () => {
    const serving = await start({
      name: 'echo',
      batchSize: { cost: { of: (text: string) => text.length, most: 10, padded: true } },
      model: { useFactory: () => (texts: string[]) => texts },
    });
    observe(serving);
    await Promise.all(['four', 'of'].map((text) => serving.batchedRun(text)));
    const measured = await telemetry().measured();
    const attributes = { 'serving.name': 'echo', 'serving.batch.key': 'default' };
    const closed = { ...attributes, 'serving.batch.close_reason': 'cost' };

    // Two rows of 32, and two times four of ten.
    const fill = { unit: '1', points: [{ attributes: closed, value: histogram(1, 0.8) }] };
    expect(measured.get('serving.batch.fill')).toEqual(fill);
    expect(measured.get('serving.batch.cost')?.points).toEqual([{ attributes, value: 8 }]);
    expect(measured.get('serving.batch.cost.padding')?.points).toEqual([{ attributes, value: 2 }]);
  });

  it('[12.3] Size, fill, wait, run time and padding of batches are recorded', async () => {
    const serving = await start({
      name: 'echo',
      batchSize: [4],
      warmUp: [floats([1, 1], [0])],
      model: { useFactory: () => (tensor: Tensor) => tensor },
    });
    const events: number[] = [];
    serving.eventsOf('batch:end').subscribe(({ wait, runTime }) => events.push(wait, runTime));
    observe(serving);
    await serving.batchedRun(floats([3, 1], [1, 2, 3]));
    const measured = await telemetry().measured();
    const attributes = { 'serving.name': 'echo', 'serving.batch.key': 'default' };
    const closed = { ...attributes, 'serving.batch.close_reason': 'idle' };
    const [wait, runTime] = events as [number, number];
    const expected: [name: string, unit: string, attributes: object, value: unknown][] = [
      ['serving.batch.size', '{row}', closed, histogram(1, 3)],
      ['serving.batch.fill', '1', closed, histogram(1, 0.75)],
      ['serving.batch.wait.duration', 's', attributes, histogram(1, wait / 1000)],
      [
        'serving.batch.run.duration',
        's',
        { ...attributes, 'serving.partition.id': 0 },
        histogram(1, runTime / 1000),
      ],
      ['serving.batch.padding', '{row}', attributes, 1],
    ];
    for (const [name, unit, ofPoint, value] of expected) {
      expect([name, measured.get(name)]).toEqual([
        name,
        { unit, points: [{ attributes: ofPoint, value }] },
      ]);
    }
  });

  it('[12.3] [13.12] The steps of sequences are recorded with their rows and duration', async () => {
    const serving = await start({
      name: 'counter',
      batchSize: 4,
      model: { useFactory: () => new CountingModel(), sequence: {} },
    });
    const events: SequenceStepEvent[] = [];
    serving.eventsOf('sequence:step').subscribe((event) => events.push(event));
    observe(serving);
    await Promise.all([2, 3].map((steps) => serving.batchedRun({ name: 'a', steps })));
    const measured = await telemetry().measured();
    const attributes = {
      'serving.name': 'counter',
      'serving.batch.key': 'default',
      'serving.partition.id': 0,
    };
    const rows = events.reduce((sum, event) => sum + event.rows, 0);
    const seconds = events.reduce((sum, { runTime }) => sum + runTime / 1000, 0);

    expect(rows).toBeGreaterThan(events.length);
    expect(measured.get('serving.sequence.step.size')).toEqual({
      unit: '{row}',
      points: [{ attributes, value: histogram(events.length, rows) }],
    });
    expect(measured.get('serving.sequence.step.duration')).toEqual({
      unit: 's',
      points: [{ attributes, value: histogram(events.length, seconds) }],
    });
  });

  it('[12.3] [15.4] The expected time of a batch is recorded, as a metric and in its span, once it is known', async () => {
    const serving = await start({ ...echo, batchSize: { latencyTarget: 1000 }, warmUp: ['row'] });
    const expected: unknown[] = [];
    serving.eventsOf('batch:end').subscribe((event) => expected.push(event.expected! / 1000));
    observe(serving);
    observe(await start(touchy));
    await serving.batchedRun('a');

    const { unit, points } = (await telemetry().measured()).get('serving.batch.expected.duration')!;
    expect(unit).toBe('s');
    expect(points).toEqual([
      {
        attributes: { 'serving.name': 'echo', 'serving.batch.key': 'default' },
        value: histogram(1, expected[0]),
      },
    ]);
    const [span] = telemetry().named('batch echo');
    expect(span?.attributes['serving.batch.expected_time']).toBe(expected[0]);
  });

  it('[12.3] A failed batch is recorded with its reason', async () => {
    const serving = await start({
      ...echo,
      model: { useFactory: () => () => Promise.reject(new Error('no')) },
    });
    observe(serving);
    await serving.batchedRun('a').catch(() => {});
    const { points } = (await telemetry().measured()).get('serving.batch.run.duration')!;
    expect(points).toMatchObject([{ attributes: { 'error.type': 'SERVING_BATCH_FAILED' } }]);
  });

  it('[12.3] Partitions by state and their restarts are reported whenever metrics are collected', async () => {
    const served: { partitions: PartitionStatus[] } = {
      partitions: [
        { state: 'up', restarts: 2 },
        { state: 'up', restarts: 0 },
        { state: 'lost', restarts: 5, reason: 'out of memory' },
      ],
    };
    const serving = await start(echo);
    observeWithOpenTelemetry(
      Object.assign(serving, { partitions: () => served.partitions }),
      telemetry(),
    );
    const counted = async (): Promise<unknown> => {
      const measured = await telemetry().measured();
      const { unit, points } = measured.get('serving.partition.count')!;
      const restarts = measured.get('serving.partition.restarts');
      expect(restarts).toMatchObject({
        unit: '{restart}',
        points: [{ attributes: { 'serving.name': 'echo' } }],
      });
      const counts = points.map(
        ({ attributes, value }) => [attributes['serving.partition.state'], value] as const,
      );
      expect(points.map(({ attributes }) => attributes['serving.name'])).toEqual(
        points.map(() => 'echo'),
      );
      return { unit, ...Object.fromEntries(counts), restarts: restarts!.points[0]!.value };
    };
    expect(await counted()).toEqual({
      unit: '{partition}',
      up: 2,
      restarting: 0,
      hung: 0,
      lost: 1,
      restarts: 7,
    });
    served.partitions = [
      { state: 'hung', restarts: 2 },
      { state: 'restarting', restarts: 1 },
      served.partitions[2]!,
    ];
    expect(await counted()).toEqual({
      unit: '{partition}',
      up: 0,
      restarting: 1,
      hung: 1,
      lost: 1,
      restarts: 8,
    });
  });

  it('[12.3] The depth of the queue is reported whenever metrics are collected', async () => {
    const held = new HeldFunction();
    const serving = await start({ ...echo, model: { useFactory: held.useFactory } });
    observe(serving);
    expect(await depth()).toBe(0);
    const calls = ['a', 'b', 'c', 'd', 'e'].map((row) => serving.batchedRun(row));
    while (held.batches.length === 0) {
      await new Promise(setImmediate);
    }
    expect(await depth()).toBe(3);
    for (let finished = 0; finished < 3; await new Promise(setImmediate)) {
      finished += held.batches.splice(0).map(({ rows, finish }) => finish(rows)).length;
    }
    await Promise.all(calls);
    expect(await depth()).toBe(0);
  });
});

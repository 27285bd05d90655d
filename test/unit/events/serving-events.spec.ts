import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { afterEach, describe, expect, it } from '@jest/globals';
import {
  Batch,
  type CallEndEvent,
  type LocalServing,
  type ServingDefinition,
  type ServingEvent,
} from 'nestjs-serving';
import { firstValueFrom, take, toArray } from 'rxjs';
import { HeldFunction } from '../../fixtures/batching/held-function.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

const echo: ServingDefinition<string> = {
  name: 'echo',
  batchSize: 2,
  model: { useFactory: () => (rows: string[]) => rows },
};

describe('The events of a serving', () => {
  const start = useServings();

  it('[12.1] The end of a call reports the stage in which it ended', async () => {
    const serving = await start({
      ...echo,
      queue: { maxRows: 4 },
      preprocess: (text: string) => {
        if (text === 'unreadable') {
          throw new Error('cannot read that');
        }
        return { batch: text };
      },
      postprocess: (text) => {
        if (text === 'unspeakable') {
          throw new Error('cannot say that');
        }
        return text;
      },
      model: {
        useFactory: () => (rows: string[]) =>
          rows.map((row) => (row === 'bad' ? new Error('a bad row') : row)),
      },
    });
    const texts = ['unreadable', 'fine', 'unspeakable', 'bad', 'fine'];
    const ends: CallEndEvent[] = [];
    serving.eventsOf('call:end').subscribe((event) => ends.push(event));
    const calls = texts.map((text) => serving.batchedRun(text));
    await Promise.allSettled([
      ...calls,
      serving.batchedRun(Batch.stack(['three', 'rows', 'more'])),
    ]);
    const stages = ends
      .toSorted((a, b) => a.call - b.call)
      .map(({ stage, error }) => [stage, error && (error as Error).message]);
    expect(stages).toEqual([
      ['preprocessing', 'cannot read that'],
      ['postprocessing', undefined],
      ['postprocessing', 'cannot say that'],
      ['running', 'a bad row'],
      ['postprocessing', undefined],
      ['waiting', expect.stringContaining('no room')],
    ]);
  });

  it('[12.1] A call with several pieces in a batch is listed once by the batch', async () => {
    const serving = await start({ ...echo, batchSize: 4 });
    const calls: (readonly number[])[] = [];
    serving.events$.subscribe((event) => event.type === 'batch:start' && calls.push(event.calls));
    await Promise.all([serving.batchedRun(['a', 'b', 'c'].values()), serving.batchedRun('d')]);
    expect(calls).toEqual([[2, 1]]);
  });

  it('[8.2] [12.1] A stream that its consumer leaves has not failed, however the consumer leaves', async () => {
    const serving = await start({
      ...echo,
      model: {
        useFactory: () =>
          async function* (rows: string[]) {
            for (;;) {
              yield rows;
            }
          },
      },
    });
    const ends = firstValueFrom(serving.eventsOf('call:end').pipe(take(3), toArray()));
    await firstValueFrom(serving.stream('a'));
    for await (const event of serving.stream('b')) {
      expect(event).toMatchObject({ output: 'b' });
      break;
    }
    const signal = AbortSignal.abort(new Error('too late'));
    await expect(firstValueFrom(serving.stream('c', { signal }))).rejects.toThrow('too late');
    expect((await ends).map(({ error }) => error)).toEqual([
      undefined,
      undefined,
      new Error('too late'),
    ]);
  });

  it.each<[string, boolean, (serving: LocalServing, signal: AbortSignal) => Promise<unknown>]>([
    ['batchedRun', false, (serving, signal) => serving.batchedRun('a', { signal })],
    ['run', false, (serving, signal) => serving.run('a', { signal })],
    ['stream', false, (serving, signal) => firstValueFrom(serving.stream('a', { signal }))],
    [
      'batchedRun of a serving with singleFlight',
      true,
      (serving, signal) => serving.batchedRun('a', { signal }),
    ],
  ])(
    '[7.3] [12.3] The end of a call reports whether it failed or was cancelled: %s',
    async (_, singleFlight, call) => {
      const held = new HeldFunction();
      const serving = await start({
        ...echo,
        deduplication: { singleFlight },
        model: { useFactory: held.useFactory },
      });
      const ends = firstValueFrom(serving.eventsOf('call:end').pipe(take(2), toArray()));
      const leaving = new AbortController();
      const reason = new Error('the client has left');

      for (const end of [
        () => leaving.abort(reason),
        () => held.next().fail(new RangeError('no')),
      ]) {
        const settled = call(
          serving,
          leaving.signal.aborted ? new AbortController().signal : leaving.signal,
        ).catch(() => {});
        while (held.batches.length === 0) {
          await new Promise(setImmediate);
        }
        end();
        await settled;
        held.batches.splice(0).forEach(({ rows, finish }) => finish(rows));
      }

      const [left, failed] = await ends;
      expect(left).toMatchObject({ error: reason, cancelled: true });
      expect(failed).toMatchObject({ error: { code: 'SERVING_BATCH_FAILED' } });
      expect(failed).not.toHaveProperty('cancelled');
    },
  );

  it('[7.3] [12.3] A call that fails while its caller leaves is reported as failed', async () => {
    const leaving = new AbortController();
    const serving = await start({
      ...echo,
      preprocess: () => {
        leaving.abort();
        throw new RangeError('cannot read that');
      },
    });
    const end = firstValueFrom(serving.eventsOf('call:end'));

    await expect(serving.batchedRun('a', leaving)).rejects.toThrow('cannot read that');

    expect(await end).toMatchObject({ error: new RangeError('cannot read that') });
    expect(await end).not.toHaveProperty('cancelled');
  });

  it('[12.3] A serving reports the number of rows in its queue', async () => {
    const held = new HeldFunction();
    const serving = await start({ ...echo, model: { useFactory: held.useFactory } });
    expect(serving.queued).toBe(0);
    const calls = ['a', 'b', 'c', 'd', 'e'].map((row) => serving.batchedRun(row));
    expect(serving.queued).toBe(5);
    while (held.batches.length === 0) {
      await new Promise(setImmediate);
    }
    expect(serving.queued).toBe(3);
    while (serving.queued > 0 || held.batches.length > 0) {
      held.batches.splice(0).forEach(({ rows, finish }) => finish(rows));
      await new Promise(setImmediate);
    }
    await Promise.all(calls);
  });
});

describe('[12.2] the cost of observation', () => {
  const start = useServings();

  it('Calls without observers are not counted by events', async () => {
    const serving = await start(echo);
    await Promise.all(['a', 'b', 'c'].map((row) => serving.batchedRun(row)));
    const calls: number[] = [];
    const subscription = serving.eventsOf('call:start').subscribe(({ call }) => calls.push(call));
    await serving.batchedRun('d');
    subscription.unsubscribe();
    await serving.batchedRun('e');
    serving.eventsOf('call:end').subscribe(({ call }) => calls.push(call));
    await serving.batchedRun('f');
    expect(calls).toEqual([1, 2]);
  });

  it.each(['batch:start', 'batch:end'] as const)(
    'An observer of %s alone causes no records of calls',
    async (type) => {
      const serving = await start(echo);
      const calls: (readonly number[])[] = [];
      serving.eventsOf(type).subscribe((event) => calls.push(event.calls));
      await Promise.all([serving.batchedRun('a'), serving.batchedRun('b')]);
      expect(calls).toEqual([[]]);
      serving.eventsOf('call:start').subscribe(({ call }) => calls.push([call]));
      await serving.batchedRun('c');
      expect(calls).toEqual([[], [1], [1]]);
    },
  );
});

describe('[12.2] the channels of node:diagnostics_channel', () => {
  const start = useServings();
  const published: ServingEvent[] = [];
  const note = (event: unknown): unknown => published.push(event as ServingEvent);
  const channels = ['call:start', 'batch:start', 'call:end', 'batch:end'].map(
    (type) => `nestjs-serving:${type}`,
  );

  afterEach(() => {
    channels.forEach((channel) => unsubscribe(channel, note));
    published.length = 0;
  });

  it('The channels publish every event of every serving', async () => {
    channels.forEach((channel) => subscribe(channel, note));
    const serving = await start(echo);
    await Promise.all([serving.batchedRun('a'), serving.batchedRun('b')]);
    const call = { serving: 'echo', version: '1', mode: 'batched' };
    const time = expect.any(Number);
    const batch = {
      serving: 'echo',
      version: '1',
      batch: 1,
      key: 'default',
      origin: undefined,
      partition: 0,
      rows: 2,
      batchSize: 2,
      fill: 1,
      reason: 'full',
      wait: time,
      queued: 0,
      calls: [1, 2],
    };
    const times = {
      startedAt: time,
      preprocessing: time,
      waiting: time,
      running: time,
      postprocessing: time,
    };
    const end = { ...call, ...times, type: 'call:end', rows: 1, stage: 'postprocessing' };
    expect(published).toEqual([
      { ...call, type: 'call:start', call: 1 },
      { ...call, type: 'call:start', call: 2 },
      { ...batch, type: 'batch:start' },
      { ...batch, type: 'batch:end', runTime: time, padding: 0 },
      { ...end, call: 1 },
      { ...end, call: 2 },
    ]);
  });

  it('The channels cost nothing once the last subscriber has left', async () => {
    const serving = await start(echo);
    channels.forEach((channel) => subscribe(channel, note));
    await serving.batchedRun('a');
    channels.forEach((channel) => unsubscribe(channel, note));
    await serving.batchedRun('b');
    channels.forEach((channel) => subscribe(channel, note));
    await serving.batchedRun('c');
    expect(published.flatMap((event) => (event.type === 'call:start' ? event.call : []))).toEqual([
      1, 2,
    ]);
  });
});

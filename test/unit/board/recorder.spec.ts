import { describe, expect, it } from '@jest/globals';
import { type BatchEndEvent, createServing, type LocalServing } from 'nestjs-serving';
import { Observable, Subject } from 'rxjs';
import { History, ObservedBatches, Recorder } from '../../../lib/extensions/board/recorder.js';
import { View } from '../../../lib/extensions/board/serving-board.js';
import { later, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

const batch = (more: Partial<BatchEndEvent> = {}): BatchEndEvent => ({
  type: 'batch:end',
  serving: 'net',
  batch: 1,
  key: 'default',
  partition: 0,
  rows: 8,
  batchSize: 32,
  fill: 0.25,
  reason: 'timeout',
  wait: 5,
  queued: 0,
  calls: [],
  runTime: 20,
  padding: 0,
  ...more,
});

const second = { answered: 0, failed: 0, rows: 0, batches: 0, padding: 0, queued: 0 };
const unobserved = { fill: NaN, waitMedian: NaN, waitP99: NaN, runMedian: NaN, runP99: NaN };

describe('History', () => {
  it('[20.10] It keeps the latest seconds in memory of fixed size, and gives those after a second', () => {
    const history = new History(3, 10);
    for (let answered = 0; answered < 5; answered++) {
      history.add({ ...second, ...unobserved, answered });
    }

    expect(history.firstAfter(-1)).toBe(12);
    expect(history.since(-1).answered).toEqual([2, 3, 4]);
    expect(history.since(13).answered).toEqual([4]);
    expect(history.since(14).answered).toEqual([]);
    expect(history.since(1e15).answered).toEqual([]);
    expect(history.since(-1).fill).toEqual([null, null, null]);
    expect(history.mean('answered', 2)).toBe(3.5);
  });
});

describe('ObservedBatches', () => {
  it('[N6] It lists what a batch with a budget costs, and the share of the budget', () => {
    const observed = new ObservedBatches();
    const cost = { sum: 6, padded: 8, most: 10 };
    observed.observe(batch({ rows: 2, fill: 0.8, cost }), 1);
    observed.observe(batch({ rows: 1, fill: 0.4, cost: { ...cost, padded: 4 } }), 2);

    expect(observed.take().fill).toBeCloseTo(0.6);
    expect(observed.since(0)[0]).toMatchObject({ rows: 2, fill: 0.8, cost });
  });

  it('[20.10] It has quantiles of a second, and the fill of its batches', () => {
    const observed = new ObservedBatches();
    for (let i = 1; i <= 100; i++) {
      observed.observe(batch({ batch: i, wait: i, runTime: 2 * i }), 0);
    }

    const figures = observed.take();
    expect(figures.fill).toBe(0.25);
    // Two figures are exact.
    expect(figures.waitMedian).toBeCloseTo(50, -0.5);
    expect(figures.waitP99 / 99).toBeCloseTo(1, 1);
    expect(figures.runMedian / 100).toBeCloseTo(1, 1);
    expect(figures.runP99 / 198).toBeCloseTo(1, 1);
    expect(observed.take()).toEqual(unobserved);
  });

  it('[20.10] A flood of batches leaves the latest forty, without what errors say', () => {
    const observed = new ObservedBatches();
    for (let i = 0; i < 10_000; i++) {
      const error = new TypeError('the secret of a caller');
      observed.observe(batch({ batch: i, key: 'k'.repeat(1000), error }), i);
    }
    observed.observe(batch({ batch: -1, revoked: true }), 20_000);

    const lines = observed.since(-1);
    expect(lines.map(({ number }) => number)).toEqual(
      Array.from({ length: 40 }, (_, i) => 9960 + i),
    );
    expect(observed.since(9998)).toMatchObject([
      { number: 9999, error: 'TypeError', key: 'k'.repeat(200) },
    ]);
    expect(JSON.stringify(lines)).not.toContain('secret');
  });

  it('[20.10] Times of nothing, of an hour and of no number are counted', () => {
    const observed = new ObservedBatches();
    observed.observe(batch({ wait: 0, runTime: 1e12 }), 0);
    expect(observed.take()).toMatchObject({ waitMedian: 0.001 });
  });
});

describe('Recorder', () => {
  const start = useServings();
  useVirtualTime();
  const begin = async () => {
    const serving: LocalServing = await start(
      createServing({ name: 'net', model: { useFactory: () => (rows: unknown) => rows } }),
    );
    let observers = 0;
    const events = new Subject<BatchEndEvent>();
    const eventsOf = () =>
      new Observable<never>((subscriber) => {
        observers++;
        const inner = events.subscribe(subscriber as never);
        return () => {
          observers--;
          inner.unsubscribe();
        };
      });
    const servings = () => [['net', serving] as const];
    const recorder = new Recorder(60, { eventsOf }, servings);
    recorder.begin();
    return { serving, recorder, events, servings, observers: () => observers };
  };

  it('[20.10] Counters are recorded each second, and no events while nobody looks', async () => {
    const { serving, recorder, observers } = await begin();
    const calls = [1, 2, 3].map((row) => serving.batchedRun([row]));
    await Promise.all(calls);
    await later(3000);

    expect(observers()).toBe(0);
    expect(recorder.second).toBe(3);
    expect(recorder.historyOf('net')!.since(-1)).toMatchObject({
      answered: [3, 0, 0],
      rows: [3, 0, 0],
      batches: [1, 0, 0],
      waitMedian: [null, null, null],
    });
    recorder.close();
  });

  it('[20.10] Batches are observed from the first viewer until ten seconds after the last', async () => {
    const { recorder, events, observers } = await begin();
    await later(2000);
    recorder.viewed();
    recorder.viewed();
    expect(observers()).toBe(1);
    events.next(batch({ wait: 7, runTime: 30 }));
    await later(1000);

    expect(recorder.batchesOf('net', -1)).toMatchObject([{ number: 1, wait: 7, runTime: 30 }]);
    expect(recorder.batchesOf('net', 1)).toEqual([]);
    const { waitMedian, fill } = recorder.historyOf('net')!.since(-1);
    expect(waitMedian).toEqual([null, null, expect.closeTo(7, 0)]);
    expect(fill).toEqual([null, null, 0.25]);
    await later(9000);
    expect(observers()).toBe(1);
    await later(1000);
    expect(observers()).toBe(0);
    expect(recorder.watchedSince).toBeUndefined();
    expect(recorder.batchesOf('net', -1)).toEqual([]);
    recorder.close();
  });

  it('[20.10] Of a flood the first five hundred batches of each second are observed', async () => {
    const { recorder, events, observers } = await begin();
    recorder.viewed();
    for (let i = 0; i < 5000; i++) {
      events.next(batch());
    }
    expect(observers()).toBe(0);
    recorder.viewed();
    expect(observers()).toBe(0);
    expect(recorder.batchesOf('net', -1).at(-1)).toMatchObject({ number: 500 });

    await later(1000);
    expect(observers()).toBe(1);
    events.next(batch());
    expect(recorder.batchesOf('net', -1).at(-1)).toMatchObject({ number: 501 });
    recorder.close();
  });

  it('[20.10] All viewers share one observation, which ends with the application', async () => {
    const { recorder, servings, observers } = await begin();
    const view = new View({
      recorder,
      servings,
      nodes: () => undefined,
      allowsChanges: false,
      seconds: 60,
    });
    for (let viewer = 0; viewer < 100; viewer++) {
      recorder.viewed();
      view.json({ serving: 'net', since: -1, batch: -1 });
    }

    expect(observers()).toBe(1);
    recorder.close();
    expect(observers()).toBe(0);
  });
});

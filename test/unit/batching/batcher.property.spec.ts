import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { Batcher, type BatchOutcome, type BatchRecord } from '../../../lib/batching/batcher.js';
import type { Lane, Part } from '../../../lib/batching/request.js';
import type { Window } from '../../../lib/batching/waiting-line.js';
import { ServingClosedError } from '../../../lib/errors.js';
import { NamedRequest } from '../../fixtures/held-batcher.js';
import { nextTimer, timers, turn, useVirtualTime } from '../../fixtures/virtual-time.js';

describe('Batcher', () => {
  useVirtualTime();

  it('[4.1] to [4.8], [4.11], [5.5], [7.3], [8.3], [9.3] keeps every promise, whatever comes when and ends how', async () => {
    await fc.assert(
      fc.asyncProperty(scenario, async (options) => {
        expect(await new Play(options).broken()).toEqual([]);
      }),
    );
  });
});

const LANES = 3;
const atSomeTime = { at: fc.nat({ max: 60 }) };

const limits = { batchSize: fc.integer({ min: 1, max: 8 }), batchTimeout: fc.constantFrom(0, 1, 10) };

const aCall = {
  lane: fc.nat({ max: LANES - 1 }),
  rows: fc.oneof({ weight: 4, arbitrary: fc.integer({ min: 1, max: 4 }) }, fc.integer({ min: 1, max: 100 })),
  /** Its rows must run in one batch; it then has no more of them than fit into one. */
  whole: fc.oneof({ weight: 3, arbitrary: fc.constant(false) }, fc.constant(true)),
  /** After how many milliseconds nobody waits for it any more, if that happens at all. */
  leaves: fc.option(fc.nat({ max: 20 }), { freq: 9, nil: undefined }),
};

const scenario = fc.record({
  lanes: fc.array(fc.record(limits), { minLength: LANES, maxLength: LANES }),
  partitions: fc.integer({ min: 1, max: 3 }),
  prefetch: fc.constantFrom(0, 1),
  calls: fc.array(fc.record({ ...atSomeTime, ...aCall }), { minLength: 1, maxLength: 25 }),
  /** Calls by those who are called themselves. */
  callbacks: fc.array(fc.record({ from: fc.constantFrom('batch', 'reply', 'start', 'end'), ...aCall }), { maxLength: 12 }),
  /** New limits of a lane. */
  changes: fc.array(fc.record({ ...atSomeTime, lane: aCall.lane, limits: fc.record(limits, { requiredKeys: [] }) }), {
    maxLength: 3,
  }),
  /** How one batch after the other runs. */
  runs: fc.array(fc.record({ duration: fc.nat({ max: 12 }), fails: fc.boolean() }), { minLength: 1, maxLength: 9 }),
  closing: fc.option(fc.record({ ...atSomeTime, abandons: fc.boolean() })),
});

type Scenario = typeof scenario extends fc.Arbitrary<infer T> ? T : never;
type Call = Omit<Scenario['calls'][number], 'at'>;
interface NamedRow {
  readonly request: NamedRequest;
  readonly index: number;
}

/** A lane, with what the scenario has done in it. */
interface PlayedLane extends Lane {
  readonly limits: { batchSize: number; batchTimeout: number };
  /** The rows that were submitted, and neither dispatched nor passed over. */
  readonly queue: NamedRow[];
  longestTimeout: number;
  hasChanged: boolean;
  hasWhole: boolean;
  wasLeft: boolean;
}

/** One scenario, with an eye on what must hold at every moment of it. */
class Play {
  private readonly batcher: Batcher<NamedRequest>;
  private readonly callbacks: Scenario['callbacks'];
  private readonly lanes: readonly PlayedLane[];
  /** The limits that held when a request came. */
  private readonly limitsAt = new Map<NamedRequest, Lane['limits']>();
  /** Of each partition, the ends of the batches that it holds, of which it runs the first. */
  private readonly held: Promise<void>[][];
  private readonly promisesBroken: string[] = [];
  private calls = 0;
  private runs = 0;
  private started: BatchRecord<NamedRequest>[] = [];
  private closed = false;
  private ended = false;

  constructor(private readonly options: Scenario) {
    const { partitions, prefetch, callbacks } = options;
    this.callbacks = [...callbacks];
    this.held = Array.from({ length: partitions }, () => []);
    this.lanes = options.lanes.map((own) => ({
      limits: { ...own },
      queue: [],
      longestTimeout: own.batchTimeout,
      hasChanged: false,
      hasWhole: false,
      wasLeft: false,
    }));
    this.batcher = new Batcher<NamedRequest>({
      name: 'played',
      maxQueue: Infinity,
      order: { ageing: 1000, weights: new Map() },
      nextBatch: () => 0,
      slots: this.held.map(() => ({ prefetch })),
      dispatch: (window, partition) => this.dispatch(window, partition),
      observer: {
        batchStarted: (record) => this.start(record),
        batchEnded: (record) => this.end(record),
      },
    });
  }

  /** Plays the scenario to its end; gives the promises that were broken. */
  async broken(): Promise<string[]> {
    const { calls, changes, closing } = this.options;
    for (const { at, ...call } of calls) {
      setTimeout(() => this.call(call), at);
    }
    for (const { at, lane, limits: own } of changes) {
      setTimeout(() => this.change(this.lanes[lane]!, own), at);
    }
    if (closing) {
      setTimeout(() => this.close(closing.abandons), closing.at);
    }
    for (await turn(); timers() > 0; await nextTimer()) {
      this.checkIdle();
    }
    this.close(false);
    await turn();
    this.check(!this.lanes.some(({ queue }) => queue.some(isWanted)), 'every row runs, or is abandoned');
    this.check(this.held.flat().length === 0, 'every batch ends');
    this.check(this.started.length === 0, 'every batch that was told to start is told to end');
    this.check(this.ended, 'it closes in the end');
    return this.promisesBroken;
  }

  private check(kept: boolean, promise: string): void {
    if (!kept) {
      this.promisesBroken.push(promise);
    }
  }

  private call({ lane: index, rows, whole, leaves }: Call): void {
    const lane = this.lanes[index]!;
    const size = whole ? 1 + ((rows - 1) % lane.limits.batchSize) : rows;
    const request = new NamedRequest(`${this.calls++}.`, { lane, size, whole });
    if (this.closed) {
      expect(() => this.batcher.submit(request)).toThrow(ServingClosedError);
      return;
    }
    lane.hasWhole ||= whole;
    lane.queue.push(...Array.from({ length: size }, (_, row) => ({ request, index: row })));
    this.limitsAt.set(request, { ...lane.limits });
    this.batcher.submit(request);
    request.queue = this.batcher;
    if (leaves !== undefined) {
      setTimeout(() => {
        lane.wasLeft = true;
        request.leave();
      }, leaves);
    }
  }

  private callBack(from: string): void {
    const index = this.callbacks.findIndex((callback) => callback.from === from);
    if (index >= 0) {
      this.call(this.callbacks.splice(index, 1)[0]!);
    }
  }

  private change(lane: PlayedLane, own: Partial<Lane['limits']>): void {
    Object.assign(lane.limits, own);
    lane.hasChanged = true;
    lane.longestTimeout = Math.max(lane.longestTimeout, lane.limits.batchTimeout);
  }

  private close(abandons: boolean): void {
    this.closed = true;
    void this.expectEnd(this.batcher.close());
    if (abandons) {
      this.batcher.abandon(new ServingClosedError());
      const abandoned = this.lanes.flatMap(({ queue }) => queue.splice(0));
      this.check(
        abandoned.filter(isWanted).every(({ request }) => request.error),
        'what is abandoned fails',
      );
    }
  }

  private async expectEnd(closing: Promise<void>): Promise<void> {
    await closing;
    this.ended = true;
    this.check(this.held.flat().length === 0, 'it closes when all batches have ended');
  }

  private start(record: BatchRecord<NamedRequest>): void {
    const { partition, batchSize } = record;
    const rows = rowsOf(record.parts);
    const lane = laneOf(rows);
    const [{ request }] = rows as [NamedRow];
    this.started.push(record);
    this.check(namesOf(takeFrom(lane, rows.length)) === namesOf(rows), 'each row runs once, in the order and lane it came in');
    this.check(rows.every(isWanted), 'no row runs for which nobody waits');
    this.check(rows.length <= batchSize, 'no batch is too large');
    this.check(lane.wasLeft || this.limitsAt.get(request)!.batchSize === batchSize, 'a window keeps the size it opened with');
    this.check(rows.every(isWholeIn(rows)), 'what must run in one batch does');
    const held = this.held[partition]!;
    this.check(held.length <= this.options.prefetch, 'a partition takes one batch, and so many ahead');
    this.check(held.length === 0 || rows.length === batchSize || lane.wasLeft, 'only full batches are handed ahead');
    this.check(held.length === 0 || this.held.every(({ length }) => length > 0), 'idle partitions come first');
    this.checkReason(record, lane);
    this.callBack('start');
  }

  private checkReason({ parts, rows, reason, batchSize, wait }: BatchRecord<NamedRequest>, { queue, wasLeft }: PlayedLane): void {
    if (wasLeft) {
      return;
    }
    const { batchTimeout } = this.limitsAt.get(parts[0]!.request)!;
    const next = queue[0]?.request;
    this.check((reason === 'full') === (rows === batchSize), 'a batch is full when it has its size');
    this.check(reason !== 'timeout' || (batchTimeout > 0 && wait >= batchTimeout), 'a window has its time');
    this.check(reason !== 'idle' || batchTimeout === 0, 'only windows without timeout close because a partition is idle');
    this.check(reason !== 'drain' || this.closed, 'only a closing batcher drains');
    this.check(
      reason !== 'flush' || (!!next?.whole && rows + next.size > batchSize),
      'a window is flushed for what does not fit into it and must not be split',
    );
  }

  private async dispatch({ parts }: Window<NamedRequest>, partition: number): Promise<BatchOutcome<NamedRequest>> {
    const { runs } = this.options;
    const held = this.held[partition]!;
    this.check(this.started.at(-1)?.parts === parts, 'a batch is told to start when it does');
    const { duration, fails } = runs[this.runs++ % runs.length]!;
    const end = (held.at(-1) ?? Promise.resolve()).then(() => sleep(duration));
    held.push(end);
    this.callBack('batch');
    await end;
    void held.shift();
    this.callBack('reply');
    return fails ? { error: new Error('the batch failed') } : {};
  }

  private end({ id, parts }: BatchRecord<NamedRequest>): void {
    const index = this.started.findIndex((record) => record.id === id && record.parts === parts);
    this.check(index >= 0, 'a batch ends once');
    this.started.splice(index, 1);
    this.callBack('end');
  }

  private checkIdle(): void {
    const idle = this.held.some(({ length }) => length === 0);
    this.check(!idle || !this.lanes.some(isReady), 'nothing that is ready waits beside an idle partition');
  }
}

/** Takes the first rows that somebody waits for out of the queue, and with them those before that nobody does. */
function takeFrom({ queue }: PlayedLane, count: number): NamedRow[] {
  const taken: NamedRow[] = [];
  while (taken.length < count && queue.length > 0) {
    taken.push(...queue.splice(0, 1).filter(isWanted));
  }
  return taken;
}

/** Some of its rows have a batch, or have had their time. */
function isReady({ queue, limits: { batchSize }, longestTimeout, hasChanged, hasWhole }: PlayedLane): boolean {
  const rows = queue.filter(isWanted);
  const isFull = rows.length >= batchSize && !hasChanged && !hasWhole;
  return isFull || rows.some(({ request }) => performance.now() - request.arrivedAt >= longestTimeout);
}

const rowsOf = (parts: readonly Part<NamedRequest>[]): NamedRow[] =>
  parts.flatMap(({ request, offset, count }) => Array.from({ length: count }, (_, i) => ({ request, index: offset + i })));
const namesOf = (rows: readonly NamedRow[]): string => rows.map(({ request, index }) => `${request.name}${index}`).join(' ');
const laneOf = (rows: readonly NamedRow[]): PlayedLane => rows[0]!.request.lane as PlayedLane;
const isWanted = ({ request }: NamedRow): boolean => !request.isOver;
const isWholeIn = (rows: readonly NamedRow[]) => (row: NamedRow) =>
  !row.request.whole || rows.filter(({ request }) => request === row.request).length === row.request.size;

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import {
  Batcher,
  type BatchOutcome,
  type BatchRecord,
  type Retry,
} from '../../../lib/batching/batcher.js';
import type { Lane, Part } from '../../../lib/batching/queued-request.js';
import type { Window } from '../../../lib/batching/ready-queue.js';
import {
  BatchFailedError,
  DeadlineExceededError,
  DeadlineTooShortError,
  isServingError,
  OverloadedError,
  PartitionLostError,
  ServingClosedError,
} from '../../../lib/errors.js';
import {
  HeldTarget,
  NamedRequest,
  type NamedRequestOptions,
} from '../../fixtures/batching/held-batcher.js';
import { nextTimer, timers, turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';

describe('Batcher', () => {
  useVirtualTime();

  it('[4.1] [4.2] [4.3] [4.4] [4.5] [4.6] [4.7] [4.8] [4.11] [5.5] [5.6] [6.4] [7.1] [7.2] [7.3] [7.4] [8.3] [9.3] The batcher keeps every promise under random calls, failures and departures', async () => {
    await fc.assert(
      fc.asyncProperty(scenario, async (options) => {
        expect(await new Play(options).broken()).toEqual([]);
      }),
      { numRuns: 200 },
    );
  });
});

const LANES = 3;
const MOST_PARTITIONS = 3;
/** Room for most rows, and not for all. */
const MAX_QUEUE = 600;
/** The number of retries of a batch. */
const MOST_RETRIES = 3;
const atSomeTime = { at: fc.nat({ max: 60 }) };

const limits = {
  batchSize: fc.integer({ min: 1, max: 8 }),
  batchTimeout: fc.constantFrom(0, 1, 10),
};

const seldom = <T>(arbitrary: fc.Arbitrary<T>, nil: T): fc.Arbitrary<T> =>
  fc.oneof({ weight: 3, arbitrary: fc.constant(nil) }, arbitrary);

const aCall = {
  lane: fc.nat({ max: LANES - 1 }),
  rows: fc.oneof(
    { weight: 4, arbitrary: fc.integer({ min: 1, max: 4 }) },
    fc.integer({ min: 1, max: 100 }),
  ),
  /** Its rows must run in one batch, and there are no more of them than fit. */
  whole: seldom(fc.constant(true), false),
  /** The milliseconds after which it is cancelled, if it is. */
  leaves: fc.option(fc.nat({ max: 20 }), { freq: 9, nil: undefined }),
  priority: seldom(fc.integer({ min: -2, max: 2 }), 0),
  tenant: seldom(fc.constantFrom('a', 'b'), ''),
  /** The milliseconds until its deadline. */
  patience: fc.option(fc.nat({ max: 40 }), { freq: 5, nil: Infinity }),
};

const scenario = fc.record({
  lanes: fc.array(fc.record(limits), { minLength: LANES, maxLength: LANES }),
  partitions: fc.integer({ min: 1, max: MOST_PARTITIONS }),
  prefetch: fc.constantFrom(0, 1),
  ageing: fc.constantFrom(0, 5, 1000),
  weights: fc.constantFrom({}, { a: 3 }, { a: 0.5, b: 2 }),
  calls: fc.array(fc.record({ ...atSomeTime, ...aCall }), { minLength: 1, maxLength: 25 }),
  /** Calls made inside the callbacks of other calls. */
  callbacks: fc.array(
    fc.record({ from: fc.constantFrom('batch', 'reply', 'start', 'end'), ...aCall }),
    { maxLength: 12 },
  ),
  /** New limits of a lane. */
  changes: fc.array(
    fc.record({ ...atSomeTime, lane: aCall.lane, limits: fc.record(limits, { requiredKeys: [] }) }),
    {
      maxLength: 3,
    },
  ),
  /** Partitions that become unavailable and return. */
  targets: fc.array(
    fc.record({
      ...atSomeTime,
      partition: fc.nat({ max: MOST_PARTITIONS - 1 }),
      is: fc.constantFrom('up', 'unavailable', 'lost'),
    }),
    { maxLength: 6 },
  ),
  /** The outcome of one batch after the other. */
  runs: fc.array(
    fc.record({
      duration: fc.nat({ max: 12 }),
      ends: fc.constantFrom('well', 'well', 'failed', 'again', 'in halves'),
    }),
    { minLength: 1, maxLength: 9 },
  ),
  closing: fc.option(fc.record({ ...atSomeTime, abandons: fc.boolean() })),
});

type Scenario = typeof scenario extends fc.Arbitrary<infer T> ? T : never;
type Call = Omit<Scenario['calls'][number], 'at'>;

/** A request that ends with its last row or with its first error, as those of calls do. */
class PlayedRequest extends NamedRequest {
  readonly errors: unknown[] = [];
  readonly rows: readonly PlayedRow[];
  /** The limits of its lane at its arrival. */
  readonly limits: Lane['limits'];
  override readonly lane: PlayedLane;

  constructor(name: string, options: NamedRequestOptions & { readonly lane: PlayedLane }) {
    super(name, options);
    this.lane = options.lane;
    this.limits = { ...options.lane.limits };
    this.rows = Array.from({ length: this.size }, (_, index) => ({
      request: this,
      index,
      is: 'waiting',
      answers: 0,
    }));
  }

  override fail(error: unknown): void {
    if (!this.isOver) {
      this.errors.push(error);
      this.leave();
    }
  }

  override expire(): void {
    this.fail(
      new DeadlineExceededError(this.deadline === Infinity ? 'without a deadline' : 'too late'),
    );
  }

  get isAnswered(): boolean {
    return this.rows.every(({ answers }) => answers === 1);
  }
}

interface PlayedRow {
  readonly request: PlayedRequest;
  readonly index: number;
  is: 'waiting' | 'running' | 'retried' | 'answered';
  answers: number;
}

/** A lane and its rows in the scenario. */
interface PlayedLane extends Lane {
  readonly limits: { batchSize: number; batchTimeout: number };
  /** The rows that were submitted and neither dispatched nor skipped: by priority and tenant. */
  readonly queues: Map<string, PlayedRow[]>;
  /** The batches of rows to retry. */
  readonly retries: PlayedRow[][];
  longestTimeout: number;
  hasChanged: boolean;
  hasWhole: boolean;
  /** Its rows may run in another order than that of arrival. */
  isMixed: boolean;
}

/** One scenario, whose invariants are checked at every step. */
class Play {
  private readonly batcher: Batcher<PlayedRequest>;
  private readonly callbacks: Scenario['callbacks'];
  private readonly lanes: readonly PlayedLane[];
  private readonly targets: readonly HeldTarget[];
  private readonly requests: PlayedRequest[] = [];
  /** For each partition the ends of its batches, the first of which runs. */
  private readonly held: Promise<void>[][];
  private readonly promisesBroken: string[] = [];
  private calls = 0;
  private runs = 0;
  private started: BatchRecord<PlayedRequest>[] = [];
  private closed = false;
  private ended = false;

  constructor(private readonly options: Scenario) {
    const { partitions, prefetch, callbacks, ageing, weights } = options;
    this.callbacks = [...callbacks];
    this.held = Array.from({ length: partitions }, () => []);
    this.targets = this.held.map(() => new HeldTarget(prefetch));
    this.lanes = options.lanes.map((own) => ({
      limits: { ...own },
      queues: new Map(),
      retries: [],
      longestTimeout: own.batchTimeout,
      hasChanged: false,
      hasWhole: false,
      isMixed: false,
    }));
    this.batcher = new Batcher<PlayedRequest>({
      name: 'played',
      maxRows: MAX_QUEUE,
      maxCost: MAX_QUEUE / 10,
      order: { ageing, weights: new Map(Object.entries(weights)) },
      nextBatch: () => 0,
      targets: this.targets,
      dispatch: (window, partition) => this.dispatch(window, partition),
      observer: {
        batchStarted: (record) => this.start(record),
        batchEnded: (record) => this.end(record),
      },
    });
  }

  /** Plays the scenario to its end and returns the broken promises. */
  async broken(): Promise<string[]> {
    const { calls, changes, closing, targets } = this.options;
    for (const { at, ...call } of calls) {
      setTimeout(() => this.call(call), at);
    }
    for (const { at, lane, limits: own } of changes) {
      setTimeout(() => this.change(this.lanes[lane]!, own), at);
    }
    for (const { at, partition, is } of targets) {
      setTimeout(
        () =>
          this.targets[partition]?.change(is === 'up' ? {} : { [is]: new PartitionLostError(is) }),
        at,
      );
    }
    if (closing) {
      setTimeout(() => this.close(closing.abandons), closing.at);
    }
    await this.playTimers();
    this.targets.forEach((target) => target.change({}));
    await this.playTimers();
    this.checkEnd();
    this.close(false);
    await turn();
    this.check(this.ended, 'the batcher closes in the end');
    return this.promisesBroken;
  }

  private async playTimers(): Promise<void> {
    for (await turn(); timers() > 0; await nextTimer()) {
      this.checkIdle();
    }
    this.checkIdle();
  }

  private check(kept: boolean, promise: string): void {
    if (!kept) {
      this.promisesBroken.push(promise);
    }
  }

  private call({ lane: index, rows, whole, leaves, patience, priority, tenant }: Call): void {
    const lane = this.lanes[index]!;
    const size = whole ? 1 + ((rows - 1) % lane.limits.batchSize) : rows;
    const deadline = performance.now() + patience;
    const options = { lane, size, whole, priority, tenant, deadline, cost: size / 10 };
    const request = new PlayedRequest(`${this.calls++}.`, options);
    const isOdd = priority !== 0 || tenant !== '' || patience < Infinity;
    const before = { wasMixed: lane.isMixed, depth: this.batcher.depth };
    lane.isMixed ||= isOdd;
    queueOf(request).push(...request.rows);
    try {
      this.batcher.submit(request);
    } catch (error) {
      // Nothing of it is left.
      request.isOver = true;
      lane.isMixed = before.wasMixed;
      this.check(this.batcher.depth === before.depth, 'a refused request leaves no rows');
      this.check(isRefusal(error, this.closed, patience), 'a call is refused for a reason');
      return;
    }
    this.check(!this.closed, 'a closed batcher accepts no calls');
    request.queue = this.batcher;
    this.requests.push(request);
    lane.hasWhole ||= whole;
    if (leaves !== undefined) {
      setTimeout(() => {
        lane.isMixed ||= !request.isOver;
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
      const waiting = this.lanes.flatMap(waitingIn).filter(isWanted);
      this.batcher.abandon(new ServingClosedError());
      this.check(
        waiting.every(({ request }) => request.errors.length === 1),
        'every waiting call fails when the batcher abandons it',
      );
      this.check(this.batcher.depth === 0, 'abandoned rows do not wait');
    }
  }

  private async expectEnd(closing: Promise<void>): Promise<void> {
    await closing;
    this.ended = true;
    this.check(this.held.flat().length === 0, 'the batcher closes after all batches have ended');
  }

  private start(record: BatchRecord<PlayedRequest>): void {
    const { partition, batchSize, reason } = record;
    const rows = rowsOf(record.parts);
    const [{ request }] = rows as [PlayedRow];
    const { lane } = request;
    this.started.push(record);
    if (reason === 'retry') {
      this.takeRetry(lane, rows);
    } else {
      this.check(
        rows.every(takeInTurn),
        'each row runs in its lane, and in the order of its priority and tenant',
      );
      this.check(
        lane.isMixed || rows.every(isOldest(rows)),
        'rows of a lane with one set of limits run in the order of their arrival',
      );
      this.check(
        lane.isMixed || request.limits.batchSize === batchSize,
        'a window keeps the size it opened with',
      );
      this.check(
        rows.every(({ is }) => is === 'waiting'),
        'each row runs once, unless its batch is to run again',
      );
    }
    this.check(
      rows.every((row) => row.request.lane === lane),
      'rows of two lanes share no batch',
    );
    this.check(rows.every(isWanted), 'no cancelled or late row runs');
    this.check(rows.length <= batchSize, 'no batch is too large');
    this.check(rows.every(isWholeIn(rows)), 'a whole request runs in one batch');
    this.checkPartition(partition, lane.isMixed || reason === 'retry' || rows.length === batchSize);
    this.checkReason(record, lane);
    rows.forEach((row) => (row.is = 'running'));
    this.callBack('start');
  }

  private takeRetry(lane: PlayedLane, rows: readonly PlayedRow[]): void {
    const index = lane.retries.findIndex((retry) => sameRows(retry.filter(isWanted), rows));
    this.check(
      index >= 0,
      'a retry has the rows to be retried, without those of cancelled or late calls',
    );
    lane.retries.splice(index, index < 0 ? 0 : 1);
  }

  private checkPartition(partition: number, mayGoAhead: boolean): void {
    const held = this.held[partition]!;
    const idle = this.held.filter(({ length }, i) => length === 0 && isUp(this.targets[i]!));
    this.check(isUp(this.targets[partition]!), 'an unavailable partition gets no batch');
    this.check(
      held.length <= this.options.prefetch,
      'a partition holds no more batches than the prefetch limit allows',
    );
    this.check(held.length === 0 || mayGoAhead, 'only full batches go to a busy partition');
    this.check(
      held.length === 0 || idle.length === 0,
      'a busy partition gets no batch while another one is idle',
    );
  }

  private checkReason(
    { parts, rows, reason, batchSize, wait }: BatchRecord<PlayedRequest>,
    lane: PlayedLane,
  ): void {
    if (lane.isMixed) {
      return;
    }
    const { batchTimeout } = parts[0]!.request.limits;
    const next = waitingIn(lane)[0]?.request;
    this.check(
      reason === 'retry' || (reason === 'full') === (rows === batchSize),
      'a batch has the reason full exactly when it has the batch size',
    );
    this.check(
      reason !== 'timeout' || (batchTimeout > 0 && wait >= batchTimeout),
      'a batch with the reason timeout has waited for the batch timeout',
    );
    this.check(
      reason !== 'idle' || batchTimeout === 0,
      'only windows without timeout close because a partition is idle',
    );
    this.check(reason !== 'drain' || this.closed, 'only a closing batcher gives the reason drain');
    this.check(
      reason !== 'flush' || (!!next?.whole && rows + next.size > batchSize),
      'a window is flushed early only for a whole request that does not fit into it',
    );
  }

  private async dispatch(
    { parts, retryState }: Window<PlayedRequest>,
    partition: number,
  ): Promise<BatchOutcome<PlayedRequest>> {
    const { runs } = this.options;
    const held = this.held[partition]!;
    this.check(
      this.started.at(-1)?.parts === parts,
      'the start of a batch is reported when it starts',
    );
    const { duration, ends } = runs[this.runs++ % runs.length]!;
    const end = (held.at(-1) ?? Promise.resolve()).then(() => sleep(duration));
    held.push(end);
    this.callBack('batch');
    await end;
    void held.shift();
    this.callBack('reply');
    return this.outcomeOf(parts, ends, typeof retryState === 'number' ? retryState : 0);
  }

  private outcomeOf(
    parts: readonly Part<PlayedRequest>[],
    ends: string,
    runs: number,
  ): BatchOutcome<PlayedRequest> {
    const rows = rowsOf(parts);
    if (ends === 'well') {
      rows.forEach(answer);
      return {};
    }
    const error = new BatchFailedError('the batch failed');
    const { lane } = parts[0]!.request;
    const halves =
      ends === 'in halves' && parts.length > 1 ? [parts.slice(0, 1), parts.slice(1)] : [parts];
    if (ends === 'failed' || runs === MOST_RETRIES) {
      // Other rows of them leave windows that were full.
      lane.isMixed ||= parts.some(({ request }) => request.waiting > 0);
      parts.forEach(({ request }) => request.fail(error));
      return { error };
    }
    lane.isMixed = true;
    const retries: Retry<PlayedRequest>[] = halves.map((half) => ({
      parts: half,
      retryState: runs + 1,
    }));
    rows.forEach((row) => (row.is = 'retried'));
    lane.retries.push(...retries.map((retry) => rowsOf(retry.parts)));
    return { error, retries };
  }

  private end({ id, parts }: BatchRecord<PlayedRequest>): void {
    const index = this.started.findIndex((record) => record.id === id && record.parts === parts);
    this.check(index >= 0, 'a batch ends once, after its start');
    this.started.splice(index, 1);
    this.callBack('end');
  }

  private checkIdle(): void {
    const idle = this.held.some(({ length }, i) => length === 0 && isUp(this.targets[i]!));
    this.check(!idle || !this.lanes.some(isReady), 'no ready row waits while a partition is idle');
    const waiting = this.requests.reduce((sum, request) => sum + request.waiting, 0);
    this.check(this.batcher.depth === waiting, 'the depth is the number of waiting rows');
    this.check(
      this.requests.every(
        ({ waiting: own, ready, isOver }) => ready <= own && (!isOver || own === 0),
      ),
      'no rows of an ended request wait',
    );
  }

  private checkEnd(): void {
    this.check(!this.lanes.flatMap(waitingIn).some(isWanted), 'every row runs or is abandoned');
    this.check(this.held.flat().length === 0, 'every batch ends');
    this.check(this.started.length === 0, 'every batch with a reported start has a reported end');
    for (const { rows, errors, isOver, deadline, isAnswered } of this.requests) {
      const isLate = performance.now() >= deadline;
      this.check(isOver || isLate, 'every call ends');
      this.check(
        rows.every(({ answers }) => answers <= 1),
        'no row is answered twice',
      );
      this.check(
        errors.length <= (isAnswered ? 0 : 1) && errors.every(isServingError),
        'a call fails at most once, with an error of this library',
      );
      this.check(
        !errors.some((error) => String(error).includes('without a deadline')),
        'only calls with a deadline expire',
      );
    }
    if (!this.closed) {
      this.checkRoom();
    }
  }

  /** There is room for as much as at first, for a tenant and for all. */
  private checkRoom(): void {
    const late = this.requests.filter(({ isOver }) => !isOver);
    late.forEach((request) => request.expire());
    this.check(this.batcher.depth === 0, 'nothing waits in the end');
    for (const [tenant, size] of [
      ['a', MAX_QUEUE / 2],
      ['', MAX_QUEUE],
    ] as const) {
      const request = new PlayedRequest('last', {
        lane: this.lanes[0]!,
        size,
        cost: MAX_QUEUE / 10,
        tenant,
      });
      this.batcher.submit(request);
      request.queue = this.batcher;
      request.leave();
    }
    this.check(this.batcher.depth === 0, 'no row of a cancelled request waits');
  }
}

function queueOf({ lane, priority, tenant }: PlayedRequest): PlayedRow[] {
  const name = `${priority} ${tenant}`;
  const queue = lane.queues.get(name) ?? [];
  lane.queues.set(name, queue);
  return queue;
}

/** Removes the row from its queue if it is the first open one there. */
function takeInTurn(row: PlayedRow): boolean {
  const queue = queueOf(row.request);
  while (queue.length > 0 && !isWanted(queue[0]!)) {
    queue.shift();
  }
  return queue.shift() === row;
}

function answer(row: PlayedRow): void {
  const { request } = row;
  if (!request.isOver) {
    row.is = 'answered';
    row.answers++;
    request.isOver = request.isAnswered;
  }
}

/** Some of its rows have a batch or have missed their deadline. */
function isReady(lane: PlayedLane): boolean {
  const { limits: own, longestTimeout, hasChanged, hasWhole, retries } = lane;
  const rows = [...lane.queues.values()].flat().filter(isWanted);
  const isFull = rows.length >= own.batchSize && !hasChanged && !hasWhole;
  const isDue = rows.some(({ request }) => performance.now() - request.arrivedAt >= longestTimeout);
  return isFull || isDue || retries.flat().some(isWanted);
}

function isRefusal(error: unknown, closed: boolean, patience: number): boolean {
  if (patience === 0 && error instanceof DeadlineExceededError) {
    return !closed;
  }
  return closed
    ? error instanceof ServingClosedError
    : error instanceof OverloadedError || error instanceof DeadlineTooShortError;
}

const rowsOf = (parts: readonly Part<PlayedRequest>[]): PlayedRow[] =>
  parts.flatMap(({ request, offset, count }) => request.rows.slice(offset, offset + count));
const sameRows = (a: readonly PlayedRow[], b: readonly PlayedRow[]): boolean =>
  a.length === b.length && a.every((row, i) => row === b[i]);
const waitingIn = ({ queues, retries }: PlayedLane): PlayedRow[] => [
  ...retries.flat(),
  ...[...queues.values()].flat(),
];
const isWanted = ({ request }: PlayedRow): boolean =>
  !request.isOver && request.deadline > performance.now();
const isUp = ({ unavailable, lost }: HeldTarget): boolean => !unavailable && !lost;
const isOldest = (rows: readonly PlayedRow[]) => (row: PlayedRow) =>
  rows[0]!.request.arrivedAt <= row.request.arrivedAt &&
  waitingIn(row.request.lane).every(
    ({ request }) => request.arrivedAt >= row.request.arrivedAt || !isWanted({ ...row, request }),
  );
const isWholeIn = (rows: readonly PlayedRow[]) => (row: PlayedRow) =>
  !row.request.whole ||
  rows.filter(({ request }) => request === row.request).length === row.request.size;

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

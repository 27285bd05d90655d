import { getEventListeners } from 'node:events';
import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import {
  Batch,
  type BatchContext,
  createServing,
  DONE,
  type LocalServing,
  type OutputEvent,
} from 'nestjs-serving';
import { from } from 'rxjs';
import { runTimers, useVirtualTime } from '../../fixtures/async/virtual-time.js';

describe('LocalServing', () => {
  useVirtualTime();

  it('[8.1] [8.2] [8.3] [8.4] [8.5] Every consumer gets its own rows in order, and nothing runs for consumers that have left', async () => {
    await fc.assert(
      fc.asyncProperty(scenario, async (options) => {
        const play = new Play(options);
        await play.run();

        expect(play.broken).toEqual([]);
        expect(play.calls.map(({ outcome }) => outcome)).toEqual(
          play.calls.map((call) => play.expected(call)),
        );
        expect(play.calls.filter(({ open }) => open > 0)).toEqual([]);
        expect(play.listeners).toBe(0);
        expect(play.watched).toEqual({ started: play.calls.length, ended: play.calls.length });
      }),
      { numRuns: 300 },
    );
  });
});

const aCall = fc.record({
  at: fc.nat({ max: 30 }),
  input: fc.constantFrom('rows', 'generator', 'async generator', 'observable', 'list'),
  /** The rows of its batches, one batch when the input is no sequence. */
  sizes: fc.array(fc.integer({ min: 1, max: 12 }), { minLength: 1, maxLength: 8 }),
  /** The milliseconds of its source per batch. */
  pace: fc.nat({ max: 4 }),
  /** The batch at which its source fails, or hangs when it is closed there. */
  faultAt: fc.option(fc.nat({ max: 8 }), { freq: 4 }),
  as: fc.constantFrom('reply', 'iteration', 'observation', 'hooks'),
  inline: fc.boolean(),
  /** The milliseconds of its consumer per event. */
  delay: fc.nat({ max: 4 }),
  /** It leaves after this many events, or by its signal after this time. */
  leaves: fc.option(
    fc.oneof(
      fc.record({ after: fc.integer({ min: 1, max: 6 }) }),
      fc.record({ at: fc.nat({ max: 30 }) }),
    ),
    {
      freq: 2,
    },
  ),
});

const scenario = fc.record({
  batchSize: fc.integer({ min: 1, max: 6 }),
  batchTimeout: fc.constantFrom(0, 5),
  partitions: fc.integer({ min: 1, max: 3 }),
  /** Whether the batch function is a generator. */
  steps: fc.boolean(),
  calls: fc.array(aCall, { minLength: 1, maxLength: 8 }),
  /** The outcome of one batch after the other. */
  runs: fc.array(fc.record({ duration: fc.nat({ max: 9 }), fails: fc.boolean() }), {
    minLength: 1,
    maxLength: 7,
  }),
});

type Scenario = typeof scenario extends fc.Arbitrary<infer T> ? T : never;
type CallPlan = Scenario['calls'][number];

/** A call in progress. Every row is a number of its own, in the order of the calls. */
interface Call extends CallPlan {
  readonly batches: readonly (readonly number[])[];
  readonly rows: readonly number[];
  readonly signal: AbortSignal;
  /** Its received rows in order of arrival, and the values of the hooks. */
  readonly got: Map<number, unknown[]>;
  readonly hooks: number[];
  pulled: number;
  taken: number;
  /** The number of sources that were opened and not closed. */
  open: number;
  hasLeft: boolean;
  outcome?: unknown;
}

const SOURCE_FAULT = 'the source failed';
const BATCH_FAULT = 'the batch failed';
const LEFT = 'left';
const stepsOf = (row: number): number => row % 4;

class Play {
  readonly calls: Call[] = [];
  readonly broken: string[] = [];
  readonly watched = { started: 0, ended: 0 };
  private readonly failed = new Set<number>();
  private readonly serving: LocalServing;
  private rows = 0;
  private runs = 0;

  constructor(private readonly options: Scenario) {
    const { batchSize, batchTimeout, partitions, steps } = options;
    this.serving = createServing({
      name: 'played',
      batchSize,
      batchTimeout,
      partitions,
      model: {
        useFactory: () => (rows: number[], context) =>
          steps ? this.stepBatch(rows, context) : this.runBatch(rows, context),
      },
    });
    this.serving.eventsOf('call:start').subscribe(() => this.watched.started++);
    this.serving.eventsOf('call:end').subscribe(() => this.watched.ended++);
  }

  get listeners(): number {
    return this.calls.reduce(
      (sum, { signal }) => sum + getEventListeners(signal, 'abort').length,
      0,
    );
  }

  async run(): Promise<void> {
    await this.serving.start();
    this.options.calls.forEach((call) => setTimeout(() => void this.call(call), call.at));
    await runTimers();
    const hanging = this.calls.filter(({ outcome }) => outcome === undefined).length;
    if (hanging > 0) {
      this.broken.push(`${hanging} calls never end`);
      return;
    }
    await this.serving.close();
  }

  /** The expected outcome of the call, as far as it is predictable. */
  expected(call: Call): unknown {
    const faults: unknown[] = [];
    if (call.hasLeft) {
      faults.push(LEFT);
    }
    if (
      call.input !== 'rows' &&
      call.faultAt !== null &&
      call.faultAt < call.sizes.length &&
      !canHang(call)
    ) {
      faults.push(SOURCE_FAULT);
    }
    if (call.rows.some((row) => this.failed.has(row))) {
      faults.push(BATCH_FAULT);
    }
    if (call.as === 'hooks' && call.batches.some(({ length }) => length > this.options.batchSize)) {
      faults.push('too many rows');
    }
    return faults.length > 0 ? expect.stringMatching(faults.join('|')) : 'complete';
  }

  private async call(made: CallPlan): Promise<void> {
    const sizes = made.input === 'rows' ? made.sizes.slice(0, 1) : made.sizes;
    const batches = sizes.map((size) => Array.from({ length: size }, () => this.rows++));
    const controller = new AbortController();
    const call: Call = {
      ...made,
      batches,
      rows: batches.flat(),
      signal: controller.signal,
      got: new Map(),
      hooks: [],
      pulled: 0,
      taken: 0,
      open: 0,
      hasLeft: false,
    };
    this.calls.push(call);
    if (call.leaves && 'at' in call.leaves) {
      setTimeout(() => {
        call.hasLeft ||= call.outcome === undefined;
        controller.abort(new Error(LEFT));
      }, call.leaves.at);
    }
    try {
      await (call.as === 'reply' ? this.collect(call) : this.stream(call));
      call.outcome = call.hasLeft
        ? LEFT
        : this.isComplete(call)
          ? 'complete'
          : `incomplete: ${JSON.stringify([...call.got])}`;
    } catch (error) {
      call.outcome = messageOf(error as Error);
    }
  }

  private async collect(call: Call): Promise<void> {
    const { inline, signal } = call;
    const output = (await this.serving[inline ? 'run' : 'batchedRun'](this.inputOf(call), {
      signal,
    })) as unknown[];
    output.forEach((result, i) =>
      call.got.set(call.rows[i]!, this.options.steps ? (result as unknown[]) : [result]),
    );
  }

  private async stream(call: Call): Promise<void> {
    const { inline, signal, as, delay, leaves } = call;
    const hooks = as === 'hooks' ? { hooks: ['h' as const] } : {};
    const events = this.serving.stream<'h'>(this.inputOf(call), { inline, signal, ...hooks });
    let received = 0;
    const leavesNow = (): boolean => {
      call.hasLeft ||= leaves !== null && 'after' in leaves && ++received === leaves.after;
      return call.hasLeft && leaves !== null && 'after' in leaves;
    };
    if (as === 'observation') {
      await new Promise<void>((resolve, reject) => {
        const subscription = events.subscribe({
          next: (event) => {
            this.take(call, event);
            if (leavesNow()) {
              subscription.unsubscribe();
              resolve();
            }
          },
          error: reject,
          complete: resolve,
        });
      });
      return;
    }
    for await (const event of events) {
      this.take(call, event);
      if (leavesNow()) {
        break;
      }
      await pause(delay);
    }
  }

  private take(call: Call, event: OutputEvent | { hook: string; value: unknown }): void {
    if ('hook' in event) {
      call.hooks.push(...(event.value as number[]));
      return;
    }
    const { batch, output } = event as OutputEvent<unknown[]>;
    if (batch.rows !== output.length) {
      this.broken.push(`an event reports ${batch.rows} rows but has ${output.length}`);
    }
    if (batch.offset < call.taken - (this.options.steps ? this.options.batchSize : 0)) {
      this.broken.push(
        `an event starts at row ${batch.offset} after ${call.taken} rows were received`,
      );
    }
    call.taken = Math.max(call.taken, batch.offset);
    output.forEach((value, i) => {
      const row = call.rows[batch.offset + i]!;
      if (value !== undefined) {
        call.got.set(row, [...(call.got.get(row) ?? []), value]);
      }
    });
  }

  private isComplete({ rows, got, as, hooks }: Call): boolean {
    const all = rows.every((row) => {
      const values = (got.get(row) ?? []) as string[];
      return values.join(' ') === this.resultsOf(row).join(' ');
    });
    const hooked =
      as !== 'hooks' || rows.every((row) => hooks.filter((value) => value === row).length === 2);
    return all && hooked && [...got.keys()].every((row) => rows.includes(row));
  }

  private resultsOf(row: number): string[] {
    return this.options.steps
      ? Array.from({ length: stepsOf(row) }, (_, step) => `${row}.${step}`)
      : [`${row}`];
  }

  private inputOf(call: Call): unknown {
    switch (call.input) {
      case 'rows':
        return Batch.stack(call.batches[0]!);
      case 'generator':
        return this.batchesOf(call);
      case 'async generator':
        return this.batchesOverTime(call);
      case 'observable':
        return from(this.batchesOverTime(call));
      default:
        return canHang(call) || call.faultAt !== null
          ? this.batchesOf(call)
          : call.batches.map((rows) => Batch.stack(rows));
    }
  }

  private *batchesOf(call: Call): Generator<Batch> {
    call.open++;
    try {
      for (const [i, rows] of call.batches.entries()) {
        if (i === call.faultAt && !canHang(call)) {
          throw new Error(SOURCE_FAULT);
        }
        this.pull(call, rows.length);
        yield Batch.stack(rows);
      }
    } finally {
      call.open--;
    }
  }

  private async *batchesOverTime(call: Call): AsyncGenerator<Batch> {
    let hangs = false;
    call.open++;
    try {
      for (const [i, rows] of call.batches.entries()) {
        this.pull(call, rows.length);
        await pause(call.pace);
        if (i === call.faultAt) {
          if (!canHang(call)) {
            throw new Error(SOURCE_FAULT);
          }
          hangs = true;
          call.open--;
          await new Promise(() => {});
        }
        yield Batch.stack(rows);
      }
    } finally {
      call.open -= hangs ? 0 : 1;
    }
  }

  /** A source is pulled no further than there is room. An Observable is not pulled. */
  private pull(call: Call, rows: number): void {
    const { batchSize, partitions } = this.options;
    const window = 2 * partitions * batchSize;
    const largest = Math.max(...call.sizes);
    if (
      call.as !== 'reply' &&
      call.input !== 'observable' &&
      call.pulled - call.taken >= window + largest + batchSize
    ) {
      this.broken.push(`${call.pulled} rows were pulled when only ${call.taken} had been received`);
    }
    if (call.hasLeft && call.input !== 'observable') {
      this.broken.push('a source was asked for a row after its consumer had left');
    }
    call.pulled += rows;
  }

  private begin(rows: readonly number[], { hooks, emit }: BatchContext): Scenario['runs'][number] {
    const gone = this.calls.filter(({ outcome, hasLeft }) => outcome !== undefined || hasLeft);
    const lost = rows.filter((row) => gone.some((call) => call.rows.includes(row)));
    if (lost.length > 0) {
      this.broken.push(`a batch ran rows ${lost.join(', ')} of calls that had ended`);
    }
    if (hooks.length > 0) {
      emit('h', rows);
      emit('other', rows);
      emit('h', rows);
    }
    return this.options.runs[this.runs++ % this.options.runs.length]!;
  }

  private fail(rows: readonly number[]): never {
    rows.forEach((row) => this.failed.add(row));
    throw new Error(BATCH_FAULT);
  }

  private async runBatch(rows: readonly number[], context: BatchContext): Promise<string[]> {
    const { duration, fails } = this.begin(rows, context);
    await pause(duration);
    return fails ? this.fail(rows) : rows.map(String);
  }

  private async *stepBatch(
    rows: readonly number[],
    context: BatchContext,
  ): AsyncGenerator<unknown[], void> {
    const { duration, fails } = this.begin(rows, context);
    const last = Math.max(...rows.map(stepsOf));
    for (let step = 0; step <= last; step++) {
      await pause(duration / 3);
      if (fails && step === last) {
        this.fail(rows.filter((_, i) => context.isWaiting(i)));
      }
      yield rows.map((row) => (step < stepsOf(row) ? `${row}.${step}` : DONE));
    }
  }
}

/** A source that hangs only fits calls that are ended from outside. */
function canHang({ leaves, input }: Pick<Call, 'leaves' | 'input'>): boolean {
  return (
    leaves !== null && 'at' in leaves && (input === 'async generator' || input === 'observable')
  );
}

function messageOf({ name, message }: Error): string {
  return name === 'InvalidInputError' && message.includes('never split')
    ? 'too many rows'
    : message;
}

const pause = (milliseconds: number): Promise<void> =>
  new Promise((resolve) => setTimeout(resolve, milliseconds));

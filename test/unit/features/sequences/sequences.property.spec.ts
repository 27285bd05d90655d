import { describe, expect, it } from '@jest/globals';
import { Batch, createServing, type LocalServing, type OutputEvent } from 'nestjs-serving';
import { settle } from 'nestjs-serving/testing';
import * as fc from 'fast-check';
import {
  nextTimer,
  passTime,
  timers,
  useVirtualTime,
} from '../../../fixtures/async/virtual-time.js';
import {
  CheckedModel,
  type Limits,
  type Played,
  type PlayedRow,
  type Run,
  valueOf,
} from '../../../fixtures/partitions/checked-model.js';

/** How often rows were paused in all plays. */
let pauses = 0;

describe('Sequences', () => {
  useVirtualTime();

  it('[13.1] [13.2] [13.3] [13.4] [13.5] [13.6] [13.7] Each reader gets its own values in order and once, and all limits hold before each step', async () => {
    await fc.assert(
      fc.asyncProperty(scenario, async (options) => {
        const play = new Play(options);
        await play.run();

        expect(play.broken).toEqual([]);
        expect(play.counts.ended).toBe(play.counts.started);
        pauses += play.counts.paused;
      }),
      { numRuns: 400 },
    );
    expect(pauses).toBeGreaterThan(100);
  });
});

/** Null this many times as often as not. */
const some = <T>(arbitrary: fc.Arbitrary<T>, nulls = 1): fc.Arbitrary<T | null> =>
  fc.oneof({ weight: nulls, arbitrary: fc.constant(null) }, arbitrary);

const aRow = fc.record({
  steps: fc.nat({ max: 14 }),
  size: fc.nat({ max: 4 }),
  marked: fc.boolean(),
  failsAt: some(fc.integer({ min: -1, max: 12 }), 9),
});

const aCall = fc.record({
  at: fc.nat({ max: 20 }),
  rows: fc.array(aRow, { minLength: 1, maxLength: 3 }),
  as: fc.constantFrom('reply', 'stream'),
  priority: fc.constantFrom(0, 0, 1),
  /** The milliseconds that its reader takes for each value. */
  delay: fc.nat({ max: 3 }),
  /** It leaves after this many values, or at this time. */
  leaves: some(
    fc.oneof(fc.record({ after: fc.integer({ min: 1, max: 8 }) }), fc.record({ in: fc.nat(30) })),
    3,
  ),
});

const scenario = fc.record({
  places: fc.integer({ min: 1, max: 5 }),
  partitions: fc.integer({ min: 1, max: 2 }),
  joinRows: some(fc.integer({ min: 1, max: 3 })),
  joinCost: some(fc.integer({ min: 1, max: 12 })),
  maxCost: some(fc.integer({ min: 10, max: 40 })),
  calls: fc.array(aCall, { minLength: 1, maxLength: 14 }),
  /** The outcome of one start or step after the other. */
  runs: fc.array(
    fc.record({
      duration: fc.nat({ max: 3 }),
      throws: fc.integer({ min: 0, max: 19 }).map((n) => n === 0),
    }),
    { minLength: 1, maxLength: 9 },
  ),
  closesAt: some(fc.nat({ max: 60 }), 4),
});

type Scenario = typeof scenario extends fc.Arbitrary<infer T> ? T : never;
type Plan = Scenario['calls'][number];

interface Call extends Plan {
  readonly named: readonly PlayedRow[];
  readonly got: Map<number, string[]>;
  readonly wasClosed: boolean;
  hasLeft: boolean;
  outcome?: unknown;
}

class Play implements Played {
  readonly broken: string[] = [];
  readonly counts = { started: 0, ended: 0, paused: 0 };
  readonly thrown = new Set<string>();
  private readonly calls: Call[] = [];
  private readonly limits: Limits;
  private readonly serving: LocalServing;
  private runs = 0;
  private rows = 0;
  private closed = false;

  constructor(private readonly options: Scenario) {
    const { places, partitions, joinRows, joinCost, maxCost } = options;
    this.limits = {
      places,
      joinRows: joinRows ?? Infinity,
      joinCost: joinCost ?? Infinity,
      maxCost: maxCost ?? Infinity,
    };
    this.serving = createServing({
      name: 'played',
      batchSize: places,
      partitions,
      model: {
        useFactory: () => new CheckedModel(this.limits, this),
        sequence: {
          ...((joinRows !== null || joinCost !== null) && {
            joins: { rows: joinRows ?? undefined, cost: joinCost ?? undefined },
          }),
          maxCost: maxCost ?? undefined,
        },
      },
    });
  }

  nextRun(): Run {
    const { runs, closesAt } = this.options;
    const { duration, throws } = runs[this.runs++ % runs.length]!;
    // Steps without duration would let virtual time jump to the limit of shutdown.
    return { duration: closesAt === null ? duration : duration + 1, throws };
  }

  async run(): Promise<void> {
    const { calls, closesAt } = this.options;
    await this.serving.start();
    calls.forEach((call) => setTimeout(() => void this.call(call), call.at));
    if (closesAt !== null) {
      setTimeout(() => {
        this.closed = true;
        void this.serving.close();
      }, closesAt);
    }
    await this.playTimers();
    this.calls.forEach((call) => this.checkOutcome(call));
    await passTime(this.serving.close());
  }

  /** A row that joins, or a step without duration, takes turns of the event loop and no time. */
  private async playTimers(): Promise<void> {
    for (await settle(40); timers() > 0; await settle(8)) {
      await nextTimer();
    }
    await settle(400);
  }

  private async call(plan: Plan): Promise<void> {
    const named = plan.rows.map((row) => ({ ...row, name: `r${this.rows++}` }));
    const call: Call = { ...plan, named, got: new Map(), hasLeft: false, wasClosed: this.closed };
    this.calls.push(call);
    const controller = new AbortController();
    const leave = (): void => {
      call.hasLeft = true;
      controller.abort(new Error('left'));
    };
    const { leaves, as, priority } = call;
    if (leaves && 'in' in leaves) {
      setTimeout(leave, leaves.in);
    }
    const options = { signal: controller.signal, priority };
    const input = Batch.stack(named);
    try {
      if (as === 'reply') {
        const lists = (await this.serving.batchedRun(input, options)) as string[][];
        lists.forEach((values, row) => call.got.set(row, values));
      } else {
        await this.read(call, this.serving.stream(input, options), leave);
      }
      call.outcome = 'complete';
    } catch (error) {
      call.outcome = (error as Error).message === 'left' ? 'left' : (error as Error).name;
    }
  }

  private async read(
    call: Call,
    events: AsyncIterable<OutputEvent>,
    leave: () => void,
  ): Promise<void> {
    let received = 0;
    for await (const { batch, output } of events) {
      const [value] = output as string[];
      call.got.set(batch.offset, [...(call.got.get(batch.offset) ?? []), value!]);
      if (call.leaves && 'after' in call.leaves && ++received === call.leaves.after) {
        leave();
      }
      if (call.delay > 0) {
        await new Promise((resolve) => setTimeout(resolve, call.delay));
      }
    }
  }

  private checkOutcome(call: Call): void {
    const { named, got, outcome, hasLeft, wasClosed } = call;
    named.forEach((row, i) => {
      const values = got.get(i) ?? [];
      this.check(
        values.every((value, step) => value === valueOf(row, step)) && values.length <= row.steps,
        'a reader gets its own values in order and once',
      );
      this.check(
        outcome !== 'complete' || values.length === row.steps,
        'a call that is answered has all its values',
      );
    });
    const faults = [
      hasLeft && 'left',
      wasClosed && 'ServingClosedError',
      named.some((row) => this.thrown.has(row.name)) && 'BatchFailedError',
      named.some((row) => this.isTooLarge(row)) && 'RequestTooLargeError',
      named.some(failsByItself) && 'RangeError',
    ].filter((fault) => fault !== false);
    this.check(outcome !== undefined, 'every call ends');
    this.check(
      outcome === 'complete'
        ? !wasClosed &&
            !named.some(
              (row) => this.isTooLarge(row) || failsByItself(row) || this.thrown.has(row.name),
            )
        : faults.includes(outcome as string),
      `a call that fails has a reason (${String(outcome)} of ${faults.join()})`,
    );
  }

  /** Its cost before its last step is more than all rows may cost. */
  private isTooLarge({ size, steps, marked }: PlayedRow): boolean {
    return size + Math.max(1, marked ? steps : steps + 1) > this.limits.maxCost;
  }

  private check(kept: boolean, promise: string): void {
    if (!kept) {
      this.broken.push(promise);
    }
  }
}

/** It has an Error before its end. */
function failsByItself({ failsAt, steps, marked }: PlayedRow): boolean {
  return failsAt !== null && failsAt < (marked && steps > 0 ? steps : steps + 1);
}

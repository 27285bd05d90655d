import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { type BatchContext, createServing, type ServingSession } from 'nestjs-serving';
import { runTimers, useVirtualTime } from '../../../fixtures/async/virtual-time.js';

/** What happens to a step in its batch. */
type Fate = 'succeeds' | 'fails' | 'fails its batch';

interface Step {
  readonly id: number;
  readonly fate: Fate;
}

const aCall = fc.record({
  at: fc.nat({ max: 60 }),
  session: fc.nat({ max: 4 }),
  fate: fc.constantFrom<Fate>('succeeds', 'succeeds', 'succeeds', 'fails', 'fails its batch'),
  timeout: fc.option(fc.integer({ min: 1, max: 15 }), { nil: undefined }),
  /** When its caller leaves, in milliseconds after the call. */
  leaves: fc.option(fc.nat({ max: 15 }), { nil: undefined }),
});

const aPlay = fc.record({
  calls: fc.array(aCall, { minLength: 1, maxLength: 40 }),
  runTimes: fc.array(fc.nat({ max: 8 }), { minLength: 1, maxLength: 5 }),
  partitions: fc.integer({ min: 1, max: 3 }),
  batchSize: fc.integer({ min: 1, max: 4 }),
  batchTimeout: fc.nat({ max: 5 }),
  isolateFailures: fc.boolean(),
  closesAt: fc.option(fc.nat({ max: 60 }), { nil: undefined }),
});

type PlayOptions = typeof aPlay extends fc.Arbitrary<infer Options> ? Options : never;

describe('Sessions', () => {
  useVirtualTime();

  it('[16.1] [16.2] [16.3] Each reply is the state that the last reply of its session left, and one step more', async () => {
    await fc.assert(
      fc.asyncProperty(aPlay, async (options) => {
        const play = new Play(options);
        await play.run();

        expect(play.broken).toEqual([]);
      }),
      { numRuns: 300 },
    );
  });
});

/** Calls of several sessions, whose state is the list of their successful steps. */
class Play {
  readonly broken: string[] = [];
  private batches = 0;
  private readonly running = new Set<number>();
  /** The steps of each session for which its caller got a reply. */
  private readonly replied: number[][] = [];

  constructor(private readonly options: PlayOptions) {}

  async run(): Promise<void> {
    const { calls, partitions, batchSize, batchTimeout, isolateFailures, closesAt } = this.options;
    const serving = createServing<Step, readonly number[], never, never>({
      name: 'steps',
      partitions,
      batchSize,
      batchTimeout,
      recovery: { idempotent: true, isolateFailures },
      model: {
        useFactory: () => (rows: readonly Step[], context) => this.runBatch(rows, context),
        sessions: {},
      },
    });
    await serving.start();
    const sessions = Array.from({ length: 5 }, () => serving.open());
    sessions.forEach(() => this.replied.push([]));
    const ended = calls.map((_, id) => this.call(sessions, id));
    if (closesAt !== undefined) {
      ended.push(delay(closesAt).then(() => sessions[0]!.close()));
    }
    const all = Promise.all(ended);
    await runTimers();
    await all;
    await serving.close();
  }

  private async call(
    sessions: readonly ServingSession<Step, readonly number[]>[],
    id: number,
  ): Promise<void> {
    const { at, session, fate, timeout, leaves } = this.options.calls[id]!;
    await delay(at);
    const caller = new AbortController();
    const leaving = leaves === undefined ? undefined : setTimeout(() => caller.abort(), leaves);
    try {
      const { signal } = caller;
      const reply = await sessions[session]!.run({ id, fate }, { timeout, signal });
      const before = this.replied[session]!;
      this.check(fate === 'succeeds', `step ${id} fails and has a reply`);
      const [found, expected] = [reply.join(), [...before, id].join()];
      this.check(found === expected, `${found} in place of ${expected}`);
      before.push(id);
    } catch (error) {
      const mayFail = fate !== 'succeeds' || timeout !== undefined || leaves !== undefined;
      const { closesAt, calls } = this.options;
      const hasBadMates = calls.some((each) => each.fate === 'fails its batch');
      this.check(
        mayFail || hasBadMates || (session === 0 && closesAt !== undefined),
        `step ${id} failed without a reason: ${String(error)}`,
      );
    } finally {
      clearTimeout(leaving);
    }
  }

  private async runBatch(
    rows: readonly Step[],
    { states, partition, turns }: BatchContext,
  ): Promise<unknown[]> {
    const { runTimes } = this.options;
    this.check(!this.running.has(partition), `partition ${partition} runs two batches`);
    this.check(new Set(turns!.ids).size === rows.length, 'two steps of a session share a batch');
    this.running.add(partition);
    await delay(runTimes[this.batches++ % runTimes.length]);
    this.running.delete(partition);
    if (rows.some(({ fate }) => fate === 'fails its batch')) {
      throw new Error('the batch fails');
    }
    return rows.map(({ id, fate }, i) => {
      states[i] = [...((states[i] as number[] | undefined) ?? []), id];
      return fate === 'fails' ? new Error('the step fails') : states[i];
    });
  }

  private check(holds: boolean, otherwise: string): void {
    if (!holds) {
      this.broken.push(otherwise);
    }
  }
}

/** In virtual time. */
function delay(milliseconds = 0): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

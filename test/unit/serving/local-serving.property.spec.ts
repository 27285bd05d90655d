import { AsyncResource } from 'node:async_hooks';
import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import {
  Batch,
  type BatchContext,
  type CallOptions,
  createServing,
  type LocalServing,
  PartitionLostError,
  type Tensor,
} from 'nestjs-serving';
import { floats } from '../../fixtures/values/tensors.js';
import { runTimers, useVirtualTime } from '../../fixtures/async/virtual-time.js';

const outside = new AsyncResource('test');

describe('LocalServing', () => {
  useVirtualTime();

  it('[4.5] [4.6] [6.1] [6.2] Every call is answered with its own rows in order, or with their failure', async () => {
    await fc.assert(
      fc.asyncProperty(scenario, async (options) => {
        const play = new Play(options);
        await play.run();

        expect(play.broken).toEqual([]);
        expect(play.calls.map(({ reply }) => reply)).toEqual(
          play.calls.map((made) => play.expected(made)),
        );
        expect(play.seen.toSorted((a, b) => a - b)).toEqual(play.due);
      }),
    );
  });

  it('[5.6] [6.4] [7.2] [7.3] [7.4] Every call is answered once and in time, with its own rows or one failure that applies to them', async () => {
    await fc.assert(
      fc.asyncProperty(hardScenario, async (options) => {
        const play = new Play(options);
        await play.run();

        expect(play.broken).toEqual([]);
        expect(play.calls.flatMap((made) => play.faultsOf(made))).toEqual([]);
        expect(play.doubled).toEqual([]);
      }),
    );
  });

  it('[6.4] In an idempotent serving only the call with the faulty row fails', async () => {
    await fc.assert(
      fc.asyncProperty(poisonedScenario, async (options) => {
        const play = new Play(options);
        await play.run();

        expect(play.broken).toEqual([]);
        expect(play.calls.map(({ reply }) => reply)).toEqual(
          play.calls.map((made) =>
            made.rows.includes(options.poison)
              ? expect.stringContaining('the batch failed')
              : play.expected(made),
          ),
        );
      }),
    );
  });
});

const aCall = fc.record({
  kind: fc.constantFrom('value', 'values', 'tensors'),
  key: fc.constantFrom('default', 'other'),
  count: fc.oneof(
    { weight: 4, arbitrary: fc.integer({ min: 1, max: 4 }) },
    fc.integer({ min: 1, max: 100 }),
  ),
  streams: fc.constant<boolean>(false),
  options: fc.constant<Terms>({}),
  leaves: fc.constant<number | undefined>(undefined),
});

const scenario = fc.record({
  batchSize: fc.integer({ min: 1, max: 8 }),
  batchTimeout: fc.constantFrom(0, 5),
  partitions: fc.integer({ min: 1, max: 3 }),
  idempotent: fc.constant<boolean>(false),
  calls: fc.array(fc.record({ at: fc.nat({ max: 40 }), call: aCall }), {
    minLength: 1,
    maxLength: 15,
  }),
  /** Calls made inside the callbacks of other calls. */
  callbacks: fc.array(fc.record({ from: fc.constantFrom('batch', 'reply'), call: aCall }), {
    maxLength: 8,
  }),
  /** The outcome of one batch after the other. */
  runs: fc.array(
    fc.record({ duration: fc.nat({ max: 12 }), ends: fc.constantFrom<Ending>('well', 'badly') }),
    {
      minLength: 1,
      maxLength: 7,
    },
  ),
  /** The multiples of it among plain rows fail by themselves. */
  faulty: fc.integer({ min: 10, max: 100 }),
  /** A batch with this row fails. */
  poison: fc.constant<number>(-1),
});

const termsOfCall = fc.record(
  {
    priority: fc.integer({ min: -10, max: 10 }),
    tenant: fc.constantFrom('a', 'b'),
    timeout: fc.nat({ max: 30 }),
  },
  { requiredKeys: [] },
);

const aHardCall = fc
  .tuple(
    aCall,
    fc.boolean(),
    termsOfCall,
    fc.option(fc.nat({ max: 20 }), { freq: 5, nil: undefined }),
  )
  .map(([call, streams, terms, leaves]) => ({ ...call, streams, options: terms, leaves }));

const hardScenario = fc
  .record({
    scenario,
    idempotent: fc.boolean(),
    calls: fc.array(fc.record({ at: fc.nat({ max: 40 }), call: aHardCall }), {
      minLength: 1,
      maxLength: 15,
    }),
    runs: fc.array(
      fc.record({
        duration: fc.nat({ max: 12 }),
        ends: fc.constantFrom<Ending>('well', 'well', 'badly', 'lost'),
      }),
      {
        minLength: 1,
        maxLength: 7,
      },
    ),
    poison: fc.integer({ min: -1, max: 50 }),
  })
  .map(({ scenario: easy, ...hard }) => ({ ...easy, ...hard }));

const poisonedScenario = fc
  .record({ scenario, poison: fc.nat({ max: 50 }) })
  .map(({ scenario: easy, poison }) => ({
    ...easy,
    poison,
    idempotent: true,
    runs: easy.runs.map(({ duration }) => ({ duration, ends: 'well' as const })),
  }));

type Terms = Pick<CallOptions, 'priority' | 'tenant' | 'timeout'>;
type Ending = 'well' | 'badly' | 'lost';
type Scenario = typeof scenario extends fc.Arbitrary<infer T> ? T : never;
type Call = typeof aCall extends fc.Arbitrary<infer T> ? T : never;

interface MadeCall extends Call {
  readonly rows: readonly number[];
  readonly askedAt: number;
  repliedAt?: number;
  leftAt?: number;
  /** The output, or the message of the error. */
  reply?: unknown;
}

/** One scenario. Every row is a number of its own, in the order of the calls. */
class Play {
  readonly calls: MadeCall[] = [];
  /** All rows that batches received. */
  readonly seen: number[] = [];
  readonly broken: string[] = [];
  /** The rows of the failed batches and of the others. */
  private readonly failed = new Set<number>();
  private readonly ran: number[] = [];
  private readonly serving: LocalServing;
  private readonly callbacks: Scenario['callbacks'];
  private rows = 0;
  private runs = 0;

  constructor(private readonly options: Scenario) {
    const { batchSize, batchTimeout, partitions, callbacks, idempotent } = options;
    this.callbacks = [...callbacks];
    this.serving = createServing({
      name: 'played',
      batchSize,
      batchTimeout,
      partitions,
      recovery: { idempotent },
      queue: { tenantWeights: { a: 2 }, priorityAgeing: 10 },
      batchKeys: ['default', 'other'],
      model: {
        useFactory: () => (input: number[] | Tensor, context) => this.runBatch(input, context),
      },
    });
  }

  async run(): Promise<void> {
    await this.serving.start();
    this.options.calls.forEach(({ at, call }) => setTimeout(() => void this.call(call), at));
    await runTimers();
    if (this.serving.queued !== 0) {
      this.broken.push('rows still wait after all calls have ended');
    }
    await this.serving.close();
  }

  /** The rows that must have run once: all but those of calls that had failed before. */
  get due(): number[] {
    return this.calls.flatMap(({ rows }) => {
      const failed = rows.some((row) => this.failed.has(row));
      return rows.filter((row) => !failed || this.seen.includes(row));
    });
  }

  /**
   * The rows that succeeded more than once, or ran more than once in a serving that is not
   * idempotent.
   */
  get doubled(): number[] {
    const rows = this.options.idempotent ? this.ran : this.seen;
    return rows.filter((row, i) => rows.indexOf(row) < i);
  }

  /** The expected answer of the call. */
  expected(made: MadeCall): unknown {
    return made.rows.some((row) => this.failed.has(row)) && !this.options.idempotent
      ? expect.stringContaining('the batch failed')
      : this.outputOf(made);
  }

  /** The faults of the answer of a call that may have failed for several reasons. */
  faultsOf(made: MadeCall): string[] {
    const {
      rows,
      reply,
      askedAt,
      repliedAt = NaN,
      leftAt,
      options: { timeout },
    } = made;
    const name = `the call of row ${rows[0]}`;
    if (repliedAt - askedAt > (timeout ?? Infinity)) {
      return [`${name} was answered late`];
    }
    switch (reply) {
      case undefined:
        return [`${name} was not answered`];
      case 'too late':
        // A row that would be late after running gives up its place, and so fails a little early.
        return timeout !== undefined ? [] : [`${name} has expired without a timeout`];
      case 'out of reach':
        // The pieces of a stream are admitted one after the other.
        return (repliedAt === askedAt || made.streams) && timeout !== undefined
          ? []
          : [`${name} was refused late`];
      case 'gone':
        return repliedAt === leftAt ? [] : [`${name} was not answered when it left`];
      case 'the batch failed':
      case 'Serving "played": the partition was lost':
        return rows.some((row) => this.failed.has(row)) ? [] : [`${name} failed for others`];
      default:
        expect(reply).toEqual(this.outputOf(made));
        return rows.every((row) => this.ran.includes(row) || this.outputOf(made) === reply)
          ? []
          : [`${name} has answers of rows that did not run`];
    }
  }

  private outputOf({ kind, rows }: MadeCall): unknown {
    if (kind === 'tensors') {
      return floats(
        [rows.length, 2],
        rows.flatMap((row) => [row, -row]),
      );
    }
    const results = rows.map((row) => this.resultOf(row));
    const fault = results.find((result) => result instanceof Error);
    return fault instanceof Error ? fault.message : kind === 'value' ? results[0] : results;
  }

  private async call({ kind, key, count, leaves, ...asked }: Call): Promise<void> {
    const rows = Array.from({ length: kind === 'value' ? 1 : count }, () => this.rows++);
    const own = { kind, key: kind === 'value' ? 'default' : key, count, leaves, ...asked };
    const made: MadeCall = { ...own, rows, askedAt: performance.now() };
    this.calls.push(made);
    const leaving = new AbortController();
    if (leaves !== undefined) {
      setTimeout(() => {
        made.leftAt = performance.now();
        leaving.abort(new Error('gone'));
      }, leaves);
    }
    try {
      made.reply = await this.ask(made, {
        ...made.options,
        ...(leaves !== undefined && { signal: leaving.signal }),
      });
    } catch (error) {
      made.reply = reasonOf(error as Error);
    }
    made.repliedAt = performance.now();
    this.callBack('reply');
  }

  private async ask(made: MadeCall, terms: CallOptions): Promise<unknown> {
    if (!made.streams) {
      return this.serving.batchedRun(inputOf(made), terms);
    }
    const outputs: unknown[] = [];
    for await (const { output } of this.serving.stream(inputOf(made), terms)) {
      outputs.push(output);
    }
    if (made.kind === 'tensors') {
      return floats(
        [made.rows.length, 2],
        outputs.flatMap((output) => [...((output as Tensor).data as Float32Array)]),
      );
    }
    return made.kind === 'value' ? outputs[0] : outputs.flat();
  }

  private callBack(from: string): void {
    const index = this.callbacks.findIndex((callback) => callback.from === from);
    if (index >= 0) {
      void this.call(this.callbacks.splice(index, 1)[0]!.call);
    }
  }

  private async runBatch(input: number[] | Tensor, { key, size }: BatchContext): Promise<unknown> {
    const { runs, batchSize, poison } = this.options;
    const { duration, ends } = runs[this.runs++ % runs.length]!;
    const rows = Array.isArray(input) ? input : [...(input.data as Float32Array)];
    this.seen.push(...rows);
    if (rows.length !== size || size > batchSize) {
      this.broken.push(
        `a batch reported with ${size} rows has ${rows.length}; at most ${batchSize} are allowed`,
      );
    }
    const callers = this.calls.filter((made) => made.rows.some((row) => rows.includes(row)));
    if (
      callers.some((made) => made.key !== key || (made.kind === 'tensors') === Array.isArray(input))
    ) {
      this.broken.push(`a batch of key ${key} has rows of another key or kind`);
    }
    if (callers.some(({ reply }) => reply !== undefined)) {
      this.broken.push('a row ran after its call had ended');
    }
    await Promise.resolve();
    // In another async context: from its own batch, the call could be one that can never run.
    outside.runInAsyncScope(() => this.callBack('batch'));
    await new Promise((resolve) => setTimeout(resolve, duration));
    if (ends !== 'well' || rows.includes(poison)) {
      rows.forEach((row) => this.failed.add(row));
      throw ends === 'lost'
        ? new PartitionLostError('the partition was lost')
        : new Error('the batch failed');
    }
    this.ran.push(...rows);
    return Array.isArray(input)
      ? rows.map((row) => this.resultOf(row))
      : floats(
          [size, 2],
          rows.flatMap((row) => [row, -row]),
        );
  }

  private resultOf(row: number): string | Error {
    return row % this.options.faulty === 0 ? new Error(`row ${row} failed`) : `row ${row}`;
  }
}

/** The message of an error, or a name for messages with unpredictable parts. */
function reasonOf(error: Error & { readonly code?: string; readonly cause?: unknown }): string {
  switch (error.code) {
    case 'SERVING_DEADLINE_EXCEEDED':
      return 'too late';
    case 'SERVING_DEADLINE_TOO_SHORT':
      return 'out of reach';
    case 'SERVING_BATCH_FAILED':
      return (error.cause as Error).message;
    default:
      return error.message;
  }
}

function inputOf({ kind, key, rows }: MadeCall): unknown {
  if (kind === 'value') {
    return rows[0];
  }
  return (
    kind === 'values' ? Batch.stack(rows) : Batch.concatenate([floats([rows.length], rows)])
  ).withKey(key);
}

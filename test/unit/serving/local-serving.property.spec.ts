import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { Batch, type BatchContext, createServing, type LocalServing } from 'nestjs-serving';
import type { Tensor } from 'onnxruntime-common';
import { floats } from '../../fixtures/tensors.js';
import { runTimers, useVirtualTime } from '../../fixtures/virtual-time.js';

describe('LocalServing', () => {
  useVirtualTime();

  it('[4.5] [4.6] [6.1] [6.2] answers every call with its own rows in their order, or with their failure', async () => {
    await fc.assert(
      fc.asyncProperty(scenario, async (options) => {
        const play = new Play(options);
        await play.run();

        expect(play.broken).toEqual([]);
        expect(play.calls.map(({ reply }) => reply)).toEqual(play.calls.map((made) => play.expected(made)));
        expect(play.seen.toSorted((a, b) => a - b)).toEqual(play.due);
      }),
    );
  });
});

const aCall = fc.record({
  kind: fc.constantFrom('value', 'values', 'tensors'),
  key: fc.constantFrom('default', 'other'),
  count: fc.oneof({ weight: 4, arbitrary: fc.integer({ min: 1, max: 4 }) }, fc.integer({ min: 1, max: 100 })),
});

const scenario = fc.record({
  batchSize: fc.integer({ min: 1, max: 8 }),
  batchTimeout: fc.constantFrom(0, 5),
  partitions: fc.integer({ min: 1, max: 3 }),
  calls: fc.array(fc.record({ at: fc.nat({ max: 40 }), call: aCall }), { minLength: 1, maxLength: 15 }),
  /** Calls by those who are called themselves. */
  callbacks: fc.array(fc.record({ from: fc.constantFrom('batch', 'reply'), call: aCall }), { maxLength: 8 }),
  /** How one batch after the other runs. */
  runs: fc.array(fc.record({ duration: fc.nat({ max: 12 }), fails: fc.boolean() }), { minLength: 1, maxLength: 7 }),
  /** Of plain rows, the multiples of it fail by themselves. */
  faulty: fc.integer({ min: 10, max: 100 }),
});

type Scenario = typeof scenario extends fc.Arbitrary<infer T> ? T : never;
type Call = typeof aCall extends fc.Arbitrary<infer T> ? T : never;

interface MadeCall extends Call {
  readonly rows: readonly number[];
  /** The output, or the message of the error. */
  reply?: unknown;
}

/** One scenario. Every row is a number of its own, in the order of the calls. */
class Play {
  readonly calls: MadeCall[] = [];
  /** All rows that batches were given. */
  readonly seen: number[] = [];
  readonly broken: string[] = [];
  /** The rows of the batches that failed. */
  private readonly failed = new Set<number>();
  private readonly serving: LocalServing;
  private readonly callbacks: Scenario['callbacks'];
  private rows = 0;
  private runs = 0;

  constructor(private readonly options: Scenario) {
    const { batchSize, batchTimeout, partitions, callbacks } = options;
    this.callbacks = [...callbacks];
    this.serving = createServing({
      name: 'played',
      batchSize,
      batchTimeout,
      partitions,
      batchKeys: ['default', 'other'],
      useFactory: () => (input: number[] | Tensor, context) => this.runBatch(input, context),
    });
  }

  async run(): Promise<void> {
    await this.serving.start();
    this.options.calls.forEach(({ at, call }) => setTimeout(() => void this.call(call), at));
    await runTimers();
    await this.serving.close();
  }

  /** The rows that must have run once: all but those of calls that had failed already. */
  get due(): number[] {
    return this.calls.flatMap(({ rows }) => {
      const failed = rows.some((row) => this.failed.has(row));
      return rows.filter((row) => !failed || this.seen.includes(row));
    });
  }

  /** What the call must have been answered with. */
  expected({ kind, rows }: MadeCall): unknown {
    if (rows.some((row) => this.failed.has(row))) {
      return expect.stringContaining('the batch failed');
    }
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

  private async call({ kind, key, count }: Call): Promise<void> {
    const rows = Array.from({ length: kind === 'value' ? 1 : count }, () => this.rows++);
    const made: MadeCall = { kind, key: kind === 'value' ? 'default' : key, count, rows };
    this.calls.push(made);
    try {
      made.reply = await this.serving.batchedRun(inputOf(made));
    } catch (error) {
      made.reply = (error as Error).message;
    }
    this.callBack('reply');
  }

  private callBack(from: string): void {
    const index = this.callbacks.findIndex((callback) => callback.from === from);
    if (index >= 0) {
      void this.call(this.callbacks.splice(index, 1)[0]!.call);
    }
  }

  private async runBatch(input: number[] | Tensor, { key, size }: BatchContext): Promise<unknown> {
    const { runs, batchSize } = this.options;
    const { duration, fails } = runs[this.runs++ % runs.length]!;
    const rows = Array.isArray(input) ? input : [...(input.data as Float32Array)];
    this.seen.push(...rows);
    if (rows.length !== size || size > batchSize) {
      this.broken.push(`a batch of ${size} rows has ${rows.length}, and ${batchSize} are allowed`);
    }
    const callers = this.calls.filter((made) => made.rows.some((row) => rows.includes(row)));
    if (callers.some((made) => made.key !== key || (made.kind === 'tensors') === Array.isArray(input))) {
      this.broken.push(`a batch of key ${key} has rows of another key or kind`);
    }
    this.callBack('batch');
    await new Promise((resolve) => setTimeout(resolve, duration));
    if (fails) {
      rows.forEach((row) => this.failed.add(row));
      throw new Error('the batch failed');
    }
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

function inputOf({ kind, key, rows }: MadeCall): unknown {
  if (kind === 'value') {
    return rows[0];
  }
  return (kind === 'values' ? Batch.stack(rows) : Batch.concatenate([floats([rows.length], rows)])).withKey(key);
}

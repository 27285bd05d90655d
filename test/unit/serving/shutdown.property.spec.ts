import { beforeEach, describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { Batch, type CallOptions, contentHash, LocalServing, type Tensor } from 'nestjs-serving';
import type { Engine } from '../../../lib/core/partitions/engine.js';
import { SupervisedPartition } from '../../../lib/core/partitions/worker/supervised.partition.js';
import { features } from '../../../lib/features/features.js';
import { RandomWorker, type Run } from '../../fixtures/partitions/random-worker.js';
import { floats } from '../../fixtures/values/tensors.js';
import { runTimers, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { silenceLog } from '../../fixtures/silent-log.js';

describe('A serving that shuts down at a random moment', () => {
  useVirtualTime();
  beforeEach(() => silenceLog());

  it('[H1] [H4] [H5] [W2] [W14] Every call is answered once: with its own rows, its own failure, or the closed error at the limit', async () => {
    await fc.assert(
      fc.asyncProperty(scenario, async (options) => {
        const play = new Play(options);
        await play.run();

        expect(play.faults).toEqual([]);
      }),
      { numRuns: 300 },
    );
  });
});

/** Absent in one of this many cases. */
const often = <T>(arbitrary: fc.Arbitrary<T>, of: number): fc.Arbitrary<T | undefined> =>
  fc.oneof({ weight: of - 1, arbitrary }, { weight: 1, arbitrary: fc.constant(undefined) });
/** Present in one of this many cases. */
const seldom = <T>(arbitrary: fc.Arbitrary<T>, of: number): fc.Arbitrary<T | undefined> =>
  fc.oneof({ weight: 1, arbitrary }, { weight: of - 1, arbitrary: fc.constant(undefined) });

const aCall = fc.record({
  at: fc.nat({ max: 80 }),
  mode: fc.constantFrom('batchedRun', 'run', 'stream', 'inline stream'),
  kind: fc.constantFrom('values', 'tensor', 'sequence'),
  /** The sequence ends with a promise that never settles. */
  stalls: seldom(fc.constant(true), 6),
  /** Equal calls are frequent, so that many share a run. */
  first: fc.nat({ max: 2 }),
  count: fc.oneof(
    { weight: 3, arbitrary: fc.integer({ min: 1, max: 3 }) },
    fc.integer({ min: 4, max: 12 }),
  ),
  /** The caller overwrites its input after the call. */
  reuses: fc.boolean(),
  leaves: seldom(fc.nat({ max: 30 }), 5),
  timeout: seldom(fc.nat({ max: 60 }), 5),
});

const aRun: fc.Arbitrary<Run> = fc.oneof(
  { weight: 12, arbitrary: fc.nat({ max: 15 }) },
  { weight: 2, arbitrary: fc.constant<Run>('dies') },
  { weight: 1, arbitrary: fc.constant<Run>('never') },
);

const scenario = fc.record({
  batchSize: fc.integer({ min: 1, max: 4 }),
  batchTimeout: fc.constantFrom(0, 5, 50),
  partitions: fc.integer({ min: 1, max: 3 }),
  queue: fc.record({ maxRows: fc.constantFrom(15, 1000) }),
  singleFlight: fc.boolean(),
  recovery: fc.record({ idempotent: fc.boolean() }),
  shutdown: fc.record({ drain: fc.boolean(), timeout: fc.nat({ max: 80 }) }),
  isProcess: fc.boolean(),
  /** Whether running workers can be ended, as processes and threads whose event loop turns can. */
  isHaltable: fc.boolean(),
  /** The milliseconds of `preprocess` per call. Some never end. */
  preprocessing: seldom(
    fc.array(often(fc.nat({ max: 20 }), 12), { minLength: 1, maxLength: 4 }),
    2,
  ),
  /** When the serving starts; calls of run() come before and after. */
  startsAt: fc.oneof(fc.constant(0), fc.nat({ max: 60 })),
  /** The milliseconds in which a session loads that run() opens before the start, if it does. */
  earlyLoad: often(fc.nat({ max: 20 }), 6),
  /** The milliseconds in which a worker loads. Some never do. */
  loads: fc.array(often(fc.nat({ max: 30 }), 8), { minLength: 1, maxLength: 4 }),
  runs: fc.array(aRun, { minLength: 1, maxLength: 8 }),
  calls: fc.array(aCall, { minLength: 1, maxLength: 14 }),
  closesAt: fc.nat({ max: 200 }),
});

type Scenario = typeof scenario extends fc.Arbitrary<infer T> ? T : never;
type Call = typeof aCall extends fc.Arbitrary<infer T> ? T : never;

/** The milliseconds after the limit by which everything that can end has ended. */
const GRACE = 410;

const CODES = [
  'SERVING_CLOSED',
  'SERVING_OVERLOADED',
  'SERVING_DEADLINE_EXCEEDED',
  'SERVING_DEADLINE_TOO_SHORT',
  'SERVING_PARTITION_LOST',
  'SERVING_UNAVAILABLE',
];

class Play {
  readonly faults: string[] = [];
  private readonly serving: LocalServing;
  private readonly workers: RandomWorker[] = [];
  private answered = 0;
  private runs = 0;
  private loads = 0;
  private preprocessed = 0;
  private closedAt: number | undefined;

  constructor(private readonly options: Scenario) {
    const { preprocessing, singleFlight, ...given } = options;
    const definition = {
      name: 'played',
      ...limitsOf(given),
      // A sequence has no content to compare.
      ...(singleFlight && {
        deduplication: {
          singleFlight,
          key: (input: unknown) => (isSequence(input) ? undefined : contentHash(input)),
        },
      }),
      ...(preprocessing && { preprocess: (input: unknown) => this.preprocess(input) }),
      model: { useFactory: () => () => [] },
    };
    const plan = { options: features.resolve(definition), model: {}, engine: this.engine };
    this.serving = new LocalServing(plan, definition, features.partsOf(definition));
  }

  async run(): Promise<void> {
    const { calls, startsAt, closesAt, shutdown, isProcess, isHaltable } = this.options;
    const began = performance.now();
    setTimeout(() => void this.start(), startsAt);
    calls.forEach((call) => setTimeout(() => void this.call(call), call.at));
    setTimeout(() => void this.close(), closesAt);
    await runTimers();
    if (this.answered !== calls.length) {
      this.faults.push(`${calls.length - this.answered} calls have no outcome`);
    }
    if ((isProcess || isHaltable) && this.workers.some(({ isBusy }) => isBusy)) {
      this.faults.push('a worker still runs after the close, though it can be stopped');
    }
    if (!(this.closedAt! <= began + closesAt + shutdown.timeout + GRACE)) {
      this.faults.push(`the serving closed too late: after ${this.closedAt! - began} ms`);
    }
  }

  private readonly engine: Engine = async (kind, partitions) => {
    if (kind === 'inline') {
      await passed(this.options.earlyLoad);
    }
    const supervision = { restartDelay: 10, maxRestarts: 2, restartTimeout: 50 };
    return {
      partitions: partitions.map(
        (_, index) =>
          new SupervisedPartition(
            index,
            this.worker(),
            (end) => this.load(end),
            supervision,
            () => 1,
          ),
      ),
    };
  };

  private worker(): RandomWorker {
    const { runs, isProcess, isHaltable } = this.options;
    const worker = new RandomWorker(() => runs[this.runs++ % runs.length]!, isProcess, isHaltable);
    this.workers.push(worker);
    return worker;
  }

  /** A worker that is restarted. */
  private load(end: AbortSignal): Promise<RandomWorker> {
    const { loads } = this.options;
    const duration = loads[this.loads++ % loads.length];
    return new Promise((resolve, reject) => {
      const timer =
        duration === undefined ? undefined : setTimeout(() => resolve(this.worker()), duration);
      end.addEventListener('abort', () => {
        clearTimeout(timer);
        reject(new Error('the load was ended'));
      });
    });
  }

  private async preprocess(batch: unknown): Promise<{ batch: unknown }> {
    const { preprocessing } = this.options;
    await passed(preprocessing![this.preprocessed++ % preprocessing!.length]);
    return { batch };
  }

  private async start(): Promise<void> {
    try {
      await this.serving.start();
    } catch (error) {
      if ((error as { code: string }).code !== 'SERVING_CLOSED') {
        this.faults.push(`the start failed: ${String(error)}`);
      }
    }
  }

  private async close(): Promise<void> {
    await this.serving.close();
    this.closedAt = performance.now();
  }

  private async call(call: Call): Promise<void> {
    const expected = Array.from({ length: call.count }, (_, i) => (call.first + i) * 10);
    const name = `${call.mode} of ${call.count} ${call.kind} at ${call.at}`;
    const leaving = new AbortController();
    const gone = new Error('gone');
    const leaves = call.leaves !== undefined && setTimeout(() => leaving.abort(gone), call.leaves);
    const options = {
      ...(call.timeout !== undefined && { timeout: call.timeout }),
      ...(call.leaves !== undefined && { signal: leaving.signal }),
    };
    try {
      const numbers = await this.ask(call, options);
      if (numbers.join() !== expected.join()) {
        this.faults.push(`${name} got ${numbers.join()}`);
      }
    } catch (error) {
      if (error !== gone && !CODES.includes((error as { code: string }).code)) {
        this.faults.push(`${name} failed: ${String(error)}`);
      }
    }
    this.answered++;
    clearTimeout(leaves || undefined);
  }

  /**
   * The numbers of the answer. A caller that reuses its input overwrites it right after the call.
   */
  private async ask(
    { mode, kind, first, count, reuses, stalls }: Call,
    options: CallOptions,
  ): Promise<readonly number[]> {
    const numbers = Array.from({ length: count }, (_, i) => first + i);
    const input = inputOf(kind, numbers, stalls === true);
    if (mode === 'batchedRun' || mode === 'run') {
      const reply = this.serving[mode](input, options);
      // Without single flight a caller must not change its input until it is answered.
      if (
        reuses &&
        mode === 'batchedRun' &&
        this.options.singleFlight &&
        kind === 'tensor' &&
        !this.options.preprocessing
      ) {
        ((input as Tensor).data as Float32Array).fill(99);
      }
      return numbersIn(await reply);
    }
    const read: number[] = [];
    for await (const { output } of this.serving.stream(input, {
      ...options,
      inline: mode === 'inline stream',
    })) {
      read.push(...numbersIn(output));
    }
    return read;
  }
}

function inputOf(kind: Call['kind'], numbers: readonly number[], stalls: boolean): unknown {
  if (kind === 'sequence') {
    return sequenceOf(numbers, stalls);
  }
  return kind === 'values' ? Batch.stack(numbers) : floats([numbers.length, 1], numbers);
}

async function* sequenceOf(numbers: readonly number[], stalls: boolean): AsyncGenerator<Batch> {
  for (const number of numbers) {
    yield Batch.stack([number]);
  }
  await (stalls && passed(undefined));
}

/** Resolves after this many milliseconds, or never. */
function passed(milliseconds: number | undefined): Promise<void> {
  return new Promise((resolve) => milliseconds !== undefined && setTimeout(resolve, milliseconds));
}

function limitsOf({
  batchSize,
  batchTimeout,
  partitions,
  queue,
  recovery,
  shutdown,
}: Omit<Scenario, 'preprocessing' | 'singleFlight'>) {
  return {
    batchSize,
    batchTimeout,
    partitions,
    queue,
    recovery,
    shutdown,
  };
}

function isSequence(input: unknown): boolean {
  return typeof input === 'object' && input !== null && Symbol.asyncIterator in input;
}

function numbersIn(output: unknown): readonly number[] {
  return Array.isArray(output)
    ? (output as number[])
    : [...((output as Tensor).data as Float32Array)];
}

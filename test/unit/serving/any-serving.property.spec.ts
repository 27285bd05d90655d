import { beforeEach, describe, expect, it } from '@jest/globals';
import { Logger } from '@nestjs/common';
import * as fc from 'fast-check';
import {
  Batch,
  type BatchContext,
  createServing,
  DONE,
  last,
  type LocalServing,
  type SequenceModel,
  type ServingDefinition,
  type ServingSession,
} from 'nestjs-serving';
import { passTime, runTimers, turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';

/**
 * Random servings, drawn from options of all kinds that boot together, under random calls and changes.
 * One model says what may happen: each call gets exactly its own answer, or an error that its options
 * allow; each call ends; nothing is left after the close.
 */
describe('Any serving under any calls', () => {
  useVirtualTime();
  beforeEach(() => Logger.overrideLogger(false));

  const playOf = {
    function: (options: Scenario) => new FunctionPlay(options),
    sessions: (options: Scenario) => new SessionsPlay(options),
    sequence: (options: Scenario) => new SequencePlay(options),
  };
  it.each(['function', 'sessions', 'sequence'] as const)(
    '[T1] answers each call with its own rows once, and ends each, as a serving of kind %s',
    async (kind) => {
      await fc.assert(
        fc.asyncProperty(scenario, async (options) => {
          const play = playOf[kind](options);
          await play.run();

          expect(play.faults).toEqual([]);
        }),
        { numRuns: 200 },
      );
    },
  );
});

const seldom = <T>(arbitrary: fc.Arbitrary<T>, of: number): fc.Arbitrary<T | undefined> =>
  fc.oneof({ weight: 1, arbitrary }, { weight: of - 1, arbitrary: fc.constant(undefined) });

/** Keys and ids that an attacker would choose, whose texts run into each other. */
const KEYS = ['default', 'x', '2:x'];
const IDS = ['42', '2:x:42', '1:x:42', 'default:42'];

/** What a step of a sequence gives, beside its value. */
const ODDITIES = ['value', 'last', 'promise', 'error', 'throwing', 'rejected'] as const;

const call = fc.record({
  kind: fc.constant('call' as const),
  by: fc.constantFrom('batchedRun' as const, 'batchedRun' as const, 'stream' as const),
  rows: fc.integer({ min: 1, max: 3 }),
  key: seldom(fc.constantFrom(...KEYS), 2),
  id: fc.constantFrom(...IDS),
  tenant: seldom(fc.constantFrom('a', 'b'), 2),
  priority: fc.constantFrom(0, 0, -1, 2),
  timeout: seldom(fc.constantFrom(5, 10, 10.5, 20, 20.4, 40, 80), 2),
  leaves: seldom(fc.constantFrom(0, 5, 10, 15), 6),
  fails: seldom(fc.constant(true), 10),
  session: fc.nat({ max: 2 }),
  steps: fc.integer({ min: 1, max: 5 }),
  oddity: fc.constantFrom('value' as const, 'value' as const, ...ODDITIES),
});

const step = fc.oneof(
  { weight: 10, arbitrary: call },
  {
    weight: 4,
    arbitrary: fc.record({
      kind: fc.constant('wait' as const),
      ms: fc.constantFrom(1, 5, 10, 20, 100),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      kind: fc.constant('resize' as const),
      rows: fc.integer({ min: 1, max: 4 }),
    }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('hold' as const), ms: fc.nat(30) }) },
);

const scenario = fc.record({
  batchSize: fc.integer({ min: 1, max: 4 }),
  batchTimeout: fc.constantFrom(0, 5),
  partitions: fc.integer({ min: 1, max: 2 }),
  hasKeys: fc.boolean(),
  maxRows: fc.constantFrom(8, 1000),
  preservesOrder: fc.boolean(),
  timeout: seldom(fc.constantFrom(30, 100), 3),
  cost: seldom(fc.integer({ min: 3, max: 6 }), 2),
  isolatesFailures: fc.boolean(),
  shares: fc.constantFrom('nothing', 'flights', 'replies'),
  runTime: fc.constantFrom(0, 5, 10),
  drains: fc.boolean(),
  /** Nothing but calls, which stay and succeed, after a few that were alone. */
  isSteady: fc.boolean(),
  steps: fc.array(step, { minLength: 1, maxLength: 40, size: 'max' }),
});

type Scenario = typeof scenario extends fc.Arbitrary<infer T> ? T : never;
type Step = typeof step extends fc.Arbitrary<infer T> ? T : never;
type Call = typeof call extends fc.Arbitrary<infer T> ? T : never;

/** A call that no other overtakes. */
const ORDINARY = { priority: 0, tenant: undefined } as const;

/** The codes of errors that calls may have for reasons of their own or of others. */
const REFUSED = ['SERVING_OVERLOADED', 'SERVING_TOO_LARGE', 'SERVING_CLOSED'];
const LATE = ['SERVING_DEADLINE_EXCEEDED', 'SERVING_DEADLINE_TOO_SHORT'];

abstract class Play<Input, Output> {
  readonly faults: string[] = [];
  protected serving!: LocalServing<Input, Output>;
  protected made = 0;
  private ended = 0;

  constructor(protected readonly options: Scenario) {}

  private get steps(): readonly Step[] {
    const { steps, isSteady } = this.options;
    return isSteady
      ? steps
          .filter(({ kind }) => kind === 'call' || kind === 'wait')
          .map((each) => ({ ...each, leaves: undefined, fails: undefined, ...ORDINARY }))
      : steps;
  }

  /** Lone calls, from which the serving learns how long batches of one row take. */
  protected async warmUp(): Promise<void> {}

  protected abstract definition(): ServingDefinition;
  /** Makes the call, and checks its outcome when it has one. */
  protected abstract call(each: Call): Promise<unknown>;

  async run(): Promise<void> {
    this.serving = createServing(this.definition(), undefined, () => store()) as never;
    await passTime(this.serving.start());
    if (this.options.isSteady) {
      await this.warmUp();
    }
    for (const each of this.steps) {
      switch (each.kind) {
        case 'call':
          this.made++;
          void this.call(each)
            .catch((error: unknown) => this.faults.push(String(error)))
            .finally(() => this.ended++);
          break;
        case 'wait':
          await turn();
          await passTime(new Promise((resolve) => setTimeout(resolve, each.ms)), 1);
          break;
        case 'resize':
          this.resize(each.rows);
          break;
        default:
          this.serving.pause();
          setTimeout(() => this.serving.state === 'ready' && this.serving.resume(), each.ms);
      }
    }
    await turn();
    if (this.options.drains) {
      const closed = this.serving.close();
      await runTimers();
      await closed;
    } else {
      await runTimers();
      await passTime(this.serving.close());
    }
    if (this.ended !== this.made) {
      this.faults.push(`${this.made - this.ended} of ${this.made} calls have not ended`);
    }
    if (this.serving.queued !== 0) {
      this.faults.push(`${this.serving.queued} rows are queued after the end`);
    }
  }

  protected resize(rows: number): void {
    this.serving.setBatchSize(rows);
  }

  protected get limits() {
    const { batchSize, partitions, timeout, drains, maxRows } = this.options;
    return {
      name: 'any',
      batchSize,
      partitions,
      ...(timeout !== undefined && { timeout }),
      queue: { maxRows },
      shutdown: { drain: drains },
    };
  }

  /** The options of the call, with a signal that aborts when its caller leaves. */
  protected optionsOf({ tenant, priority, timeout, leaves }: Call) {
    const caller = new AbortController();
    if (leaves !== undefined) {
      setTimeout(() => caller.abort(LEFT), leaves);
    }
    return {
      priority,
      ...(tenant !== undefined && { tenant }),
      ...(timeout !== undefined && { timeout }),
      ...(leaves !== undefined && { signal: caller.signal }),
    };
  }

  /** The code of the error, if the options of the call explain it. */
  protected explain(each: Call, error: unknown, others: readonly string[] = []): void {
    const limit = each.timeout ?? this.options.timeout;
    const code = error === LEFT ? 'LEFT' : String((error as { code?: unknown }).code ?? error);
    const isExplained =
      (code === 'LEFT' && each.leaves !== undefined) ||
      (LATE.includes(code) && limit !== undefined) ||
      REFUSED.includes(code) ||
      others.includes(code);
    if (!isExplained) {
      this.faults.push(`${JSON.stringify(each)} failed with ${code}`);
    }
  }
}

const LEFT = new Error('the caller left');

function store() {
  const kept = new Map<string, unknown>();
  return {
    get: async (key: string) => kept.get(key),
    set: async (key: string, value: unknown) => kept.set(key, value),
  };
}

interface Row {
  readonly id: string;
  /** What the answer depends on. */
  readonly whole: string;
  readonly n: number;
  readonly fails: boolean;
}

/** A batch function, with keys, costs, shared replies, and rows that fail. */
class FunctionPlay extends Play<Batch | Row, string | string[]> {
  private readonly runs = new Map<number, number>();
  private n = 0;

  protected definition(): ServingDefinition {
    const { batchTimeout, hasKeys, preservesOrder, cost, isolatesFailures, shares, runTime } =
      this.options;
    const { queue, ...limits } = this.limits;
    return {
      ...limits,
      batchTimeout,
      ...(hasKeys && { batchKeys: KEYS }),
      queue: { ...queue, ...(preservesOrder && { order: 'preserve' as const }) },
      ...(cost !== undefined && {
        batchCost: { of: (row: unknown) => 1 + ((row as Row).n % 3), most: cost },
      }),
      recovery: { idempotent: isolatesFailures },
      ...(shares !== 'nothing' && {
        deduplication: {
          singleFlight: true,
          ...(shares === 'replies' && { cache: { ttl: 1000 } }),
          key: ({ id }: Row) => id,
        },
      }),
      useFactory:
        () =>
        async (rows: readonly Row[], { key }: BatchContext) => {
          rows.forEach(({ n }) => this.runs.set(n, (this.runs.get(n) ?? 0) + 1));
          await new Promise((resolve) => setTimeout(resolve, runTime));
          if (rows.some(({ fails }) => fails)) {
            throw new Error('a row that fails');
          }
          return rows.map(({ whole }) => `${key}/${whole}`);
        },
    };
  }

  protected override async warmUp(): Promise<void> {
    for (let i = 0; i < 10; i++) {
      const n = this.n++;
      await passTime(
        this.serving.batchedRun(
          { id: `lone ${n}`, whole: `${n}`, n, fails: false },
          { timeout: 1000 },
        ),
        1,
      );
    }
  }

  protected async call(each: Call): Promise<void> {
    const { hasKeys, shares } = this.options;
    const key = (hasKeys && each.key) || undefined;
    const isShared = shares !== 'nothing';
    const rows = Array.from({ length: isShared ? 1 : each.rows }, (): Row => {
      const n = this.n++;
      // Calls of one id and key are equal.
      const whole = isShared ? `${each.id}@${key ?? 'default'}` : `${n}`;
      return { id: each.id, whole, n, fails: !isShared && each.fails === true };
    });
    const input = isShared ? rows[0]! : Batch.stack(rows);
    const options = { ...this.optionsOf(each), ...(key !== undefined && { key }) };
    const isEasy = this.isEasy(each);
    try {
      const answer = await this.answerOf(each, input, options);
      const expected = rows.map(({ whole }) => `${key ?? 'default'}/${whole}`);
      if ([answer].flat().join() !== expected.join()) {
        this.faults.push(`${JSON.stringify(answer)} in place of ${expected.join()}`);
      }
    } catch (error) {
      this.explain(each, error, ['SERVING_BATCH_FAILED']);
      if (isEasy && LATE.includes((error as { code: string }).code)) {
        this.faults.push(`${JSON.stringify(each)} had time for three batches: ${String(error)}`);
      }
    }
    const most = this.options.isolatesFailures ? 4 : 1;
    const often = rows.filter(({ n }) => (this.runs.get(n) ?? 0) > most);
    if (often.length > 0) {
      this.faults.push(`rows ${often.map(({ n }) => n).join()} ran more than ${most} times`);
    }
  }

  /** True if one batch holds the call and all that wait, and its time is that of three batches. */
  private isEasy({ timeout: own, rows }: Call): boolean {
    const timeout = own ?? this.options.timeout;
    const { isSteady, runTime, batchTimeout, batchSize, cost, hasKeys } = this.options;
    return (
      isSteady &&
      cost === undefined &&
      !hasKeys &&
      !this.options.drains &&
      this.serving.queued + rows <= batchSize &&
      timeout !== undefined &&
      timeout > 3 * runTime + batchTimeout
    );
  }

  private async answerOf(
    { by }: Call,
    input: Batch | Row,
    options: object,
  ): Promise<string | string[]> {
    if (by === 'batchedRun') {
      return this.serving.batchedRun(input, options);
    }
    const outputs: string[] = [];
    for await (const event of this.serving.stream(input, options)) {
      outputs.push(...[(event as { output: string | string[] }).output].flat());
    }
    return outputs;
  }
}

/** Sessions whose state is a sum: a call that fails leaves it as it was. */
class SessionsPlay extends Play<number, number> {
  private readonly sessions: ServingSession<number, number>[] = [];
  /** For each session, the outcomes of its calls in the order in which they were made. */
  private readonly outcomes: {
    readonly n: number;
    readonly reply: Promise<number | undefined>;
  }[][] = [];

  protected definition(): ServingDefinition {
    return {
      ...this.limits,
      sessions: {},
      useFactory:
        () =>
        async (rows: readonly number[], { states }: BatchContext) => {
          const sums = rows.map((row, i) => ((states[i] as number | undefined) ?? 0) + row);
          await new Promise((resolve) => setTimeout(resolve, this.options.runTime));
          sums.forEach((sum, i) => (states[i] = sum));
          return sums;
        },
    };
  }

  override async run(): Promise<void> {
    await super.run();
    for (const calls of this.outcomes.filter(Boolean)) {
      let sum = 0;
      for (const { n, reply } of calls) {
        const answer = await reply;
        sum += answer === undefined ? 0 : n;
        if (answer !== undefined && answer !== sum) {
          this.faults.push(
            `a session answers ${answer}, and its successful calls add up to ${sum}`,
          );
          break;
        }
      }
    }
  }

  protected async call(each: Call): Promise<void> {
    const at = each.session;
    const session = (this.sessions[at] ??= this.serving.open());
    const calls = (this.outcomes[at] ??= []);
    const n = 2 ** (calls.length % 30);
    const { tenant: _, ...options } = this.optionsOf(each);
    const reply = session.run(n, options).catch((error: unknown) => {
      this.explain(each, error, ['SERVING_SESSION_ENDED']);
      return undefined;
    });
    calls.push({ n, reply });
    await reply;
  }
}

interface Prompt {
  readonly n: number;
  readonly steps: number;
  readonly oddity: (typeof ODDITIES)[number];
}

interface Progress extends Prompt {
  next: number;
}

/** Sequences, whose steps also give promises, errors, and results that throw when they are read. */
class SequencePlay extends Play<Prompt, number[]> {
  /** The rows that are present on each partition. */
  private readonly present = new Map<number, Set<Progress>>();
  private n = 0;

  protected definition(): ServingDefinition {
    const { hasKeys, cost = 100 } = this.options;
    return {
      ...this.limits,
      ...(hasKeys && { batchKeys: KEYS }),
      sequence: { maxCost: cost },
      useFactory: ({ partition }: { readonly partition: number }) => this.model(partition, cost),
    };
  }

  /** The number of places is fixed. */
  protected override resize(): void {}

  private model(partition: number, most: number): SequenceModel<Prompt, number, Progress> {
    const present = this.present.get(partition) ?? new Set<Progress>();
    this.present.set(partition, present);
    const costOf = ({ n }: Prompt): number => 1 + (n % 3);
    return {
      start: (prompts, { emitted }) =>
        prompts.map((prompt, i) => {
          const state = { ...prompt, next: emitted[i]!.length };
          present.add(state);
          return state;
        }),
      step: async (states) => {
        const cost = [...present].reduce((sum, state) => sum + costOf(state), 0);
        if (cost > most) {
          this.faults.push(`rows of a cost of ${cost} run on a partition, and ${most} may`);
        }
        await new Promise((resolve) => setTimeout(resolve, this.options.runTime));
        return states.map((state) => resultOf(state) as number);
      },
      end: (state) => void present.delete(state),
      cost: costOf,
    };
  }

  protected async call(each: Call): Promise<void> {
    const { steps, oddity } = each;
    const n = this.n++;
    const key = this.options.hasKeys ? each.key : undefined;
    const options = { ...this.optionsOf(each), ...(key !== undefined && { key }) };
    try {
      const values = await this.serving.batchedRun({ n, steps, oddity }, options);
      const expected = Array.from({ length: steps }, (_, i) => 100 * n + i);
      if (JSON.stringify(values) !== JSON.stringify(expected) || FAILING.includes(oddity)) {
        this.faults.push(`${JSON.stringify(values)} in place of ${expected.join()} (${oddity})`);
      }
    } catch (error) {
      const own = FAILING.includes(oddity);
      this.explain(each, error, own ? [String(error), 'SERVING_INVALID_OUTPUT'] : []);
      if (!own && (error as Error).message === 'odd') {
        this.faults.push(`row ${n} has the error of another`);
      }
    }
  }
}

const FAILING: readonly string[] = ['error', 'throwing', 'rejected'];

function resultOf(state: Progress): unknown {
  const { n, steps, oddity } = state;
  const value = 100 * n + state.next++;
  const isLast = state.next === steps;
  if (state.next > steps) {
    return DONE;
  }
  switch (isLast ? oddity : 'value') {
    case 'last':
      return last(value);
    case 'promise':
      return last(Promise.resolve(value) as never);
    case 'error':
      return new Error('odd');
    case 'rejected':
      return Promise.reject(new Error('odd'));
    case 'throwing': {
      const { proxy, revoke } = Proxy.revocable({}, {});
      revoke();
      return proxy;
    }
    default:
      return value;
  }
}

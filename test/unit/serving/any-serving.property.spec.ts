import { beforeEach, describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import {
  Batch,
  type BatchContext,
  DONE,
  last,
  LocalServing,
  type SequenceModel,
  type CallOptions,
  isServingError,
  type ServingSession,
  type ServingVersion,
} from 'nestjs-serving';
import { features } from '../../../lib/features/features.js';
import type { FunctionServingDefinition } from '../../../lib/core/definition/serving-definition.js';
import { functionEngine, type Engine, openerOf } from '../../../lib/core/partitions/engine.js';
import type { VersionPlan } from '../../../lib/core/versions/version-loader.js';
import {
  passTime,
  runTimers,
  timers,
  turn,
  useVirtualTime,
} from '../../fixtures/async/virtual-time.js';
import { silenceLog } from '../../fixtures/silent-log.js';

/**
 * Random servings, drawn from options of all kinds that boot together, under random calls and changes,
 * versions among them. One model says what may happen: each call gets exactly its own answer, once,
 * from the version that it was routed to, or an error that its options allow; each call ends; no
 * row, timer or partition is left after the close.
 */
describe('Any serving under any calls', () => {
  useVirtualTime();
  beforeEach(() => silenceLog());

  const playOf = {
    function: (options: Scenario) => new FunctionPlay(options),
    'function under steady calls': (options: Scenario) => new SteadyPlay(options),
    sessions: (options: Scenario) => new SessionsPlay(options),
    sequence: (options: Scenario) => new SequencePlay(options),
  };
  it.each(['function', 'function under steady calls', 'sessions', 'sequence'] as const)(
    '[T1] answers each call with its own rows once, and ends each, as a serving of kind %s',
    async (kind) => {
      await fc.assert(
        fc.asyncProperty(scenario, async (options) => {
          const play = playOf[kind](options);
          await play.run();

          expect(play.faults).toEqual([]);
        }),
        { numRuns: RUNS },
      );
    },
  );
});

/** With SEED other cases, and more of them. */
const RUNS = process.env['SEED'] === undefined ? 200 : 500;

const seldom = <T>(arbitrary: fc.Arbitrary<T>, of: number): fc.Arbitrary<T | undefined> =>
  fc.oneof({ weight: 1, arbitrary }, { weight: of - 1, arbitrary: fc.constant(undefined) });

/** Keys and ids that an attacker would choose, whose texts run into each other. */
const KEYS = ['default', 'x', '2:x'];
const IDS = ['42', '2:x:42', '1:x:42', 'default:42'];

/** What a step of a sequence gives, beside its value. */
const ODDITIES = ['value', 'last', 'promise', 'error', 'throwing', 'rejected'] as const;

const call = fc.record({
  kind: fc.constant('call' as const),
  by: fc.constantFrom(...(['batchedRun', 'batchedRun', 'stream', 'run'] as const)),
  version: seldom(fc.constantFrom('1', '2', '3'), 10),
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

const anyStep = fc.oneof(
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
  {
    weight: 1,
    arbitrary: fc.record({
      kind: fc.constant('rewait' as const),
      ms: fc.constantFrom(0, 5, 20),
      key: seldom(fc.constantFrom(...KEYS), 2),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      kind: fc.constant('hold' as const),
      by: fc.constantFrom('pause' as const, 'pause' as const, 'drain' as const),
      ms: fc.nat(30),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      kind: fc.constant('reload' as const),
      as: fc.constantFrom('active' as const, 'canary' as const, 'shadow' as const),
      share: fc.constantFrom(0, 0.5, 1),
      fails: seldom(fc.constant(true), 5),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      kind: fc.constant('change' as const),
      to: fc.constantFrom('promote' as const, 'rollback' as const, 'share' as const),
      share: fc.constantFrom(0, 0.5, 1),
      which: fc.nat(3),
    }),
  },
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
  /** Milliseconds until a version is loaded. */
  loadTime: fc.constantFrom(0, 5),
  isGenerator: fc.boolean(),
  steps: fc.array(anyStep, { minLength: 1, maxLength: 40, size: 'max' }),
});

type Scenario = typeof scenario extends fc.Arbitrary<infer T> ? T : never;
type Step = typeof anyStep extends fc.Arbitrary<infer T> ? T : never;
type Call = typeof call extends fc.Arbitrary<infer T> ? T : never;

/** The codes of errors that calls may have for reasons of their own or of others. */
const REFUSED = ['SERVING_OVERLOADED', 'SERVING_TOO_LARGE', 'SERVING_CLOSED'];
const LATE = ['SERVING_DEADLINE_EXCEEDED', 'SERVING_DEADLINE_TOO_SHORT'];

/** The version that calls find first. */
const FIRST = '1';

abstract class Play<Input, Output> {
  readonly faults: string[] = [];
  protected serving!: LocalServing<Input, Output>;
  /** What each version was loaded as. */
  protected readonly fateOf = new Map<string, 'active' | 'canary' | 'shadow' | 'fails'>();
  private readonly loaded: ServingVersion[] = [];
  private readonly store = store();
  private hasDrained = false;
  private lastLabel = Number(FIRST);
  private open = 0;
  private made = 0;
  private ended = 0;

  constructor(protected readonly options: Scenario) {}

  /** Calls before the others. */
  protected async warmUp(): Promise<void> {}

  /** The definition of the version with that label. */
  protected abstract definition(label: string): FunctionServingDefinition;
  /** Makes the call, and checks its outcome when it has one. */
  protected abstract call(each: Call): Promise<unknown>;

  async run(): Promise<void> {
    const definition = this.definition(FIRST);
    const parts = features.partsOf(definition, () => this.store);
    this.serving = new LocalServing(this.planOf(FIRST), definition, parts);
    await passTime(this.serving.start());
    await this.warmUp();
    for (const each of this.options.steps) {
      await this.take(each);
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
    this.checkEnd();
  }

  private async take(each: Step): Promise<void> {
    const { serving, loaded } = this;
    switch (each.kind) {
      case 'call':
        this.follow(this.call(each));
        break;
      case 'wait':
        await turn();
        await passTime(new Promise((resolve) => setTimeout(resolve, each.ms)), 1);
        break;
      case 'resize':
        this.resize(each.rows);
        break;
      case 'rewait':
        this.change(async () => {
          const { key } = each;
          serving.setBatchTimeout(each.ms, this.options.hasKeys ? key : undefined);
        });
        break;
      case 'hold':
        this.hasDrained ||= each.by === 'drain';
        serving[each.by]();
        setTimeout(() => serving.state === 'ready' && serving.resume(), each.ms);
        break;
      case 'reload':
        this.change(async () => {
          const share = each.as === 'active' ? {} : { [each.as]: each.share };
          const version = `${++this.lastLabel}`;
          this.fateOf.set(version, each.fails ? 'fails' : each.as);
          loaded.push(await serving.reload({ ...share, version }));
        });
        break;
      default:
        this.change(async () => {
          const version = loaded[each.which % loaded.length];
          if (version && each.to === 'share') {
            version.share = each.share;
          } else if (version && each.to !== 'share') {
            await version[each.to]();
          }
        });
    }
  }

  /** A change that may be refused, with an error that says why. */
  private change(make: () => Promise<void>): void {
    this.follow(
      make().catch((error: unknown) => {
        if (!isServingError(error)) {
          throw error;
        }
      }),
    );
  }

  /** Counts what was made and has ended. */
  private follow(work: Promise<unknown>): void {
    this.made++;
    void work
      .catch((error: unknown) => this.faults.push(String(error)))
      .finally(() => this.ended++);
  }

  private checkEnd(): void {
    const left = {
      'calls and changes': this.made - this.ended,
      'queued rows': this.serving.queued,
      timers: timers(),
      partitions: this.open,
    };
    for (const [what, count] of Object.entries(left)) {
      if (count !== 0) {
        this.faults.push(`${count} ${what} are left after the end`);
      }
    }
  }

  private planOf(label: string): VersionPlan {
    const definition = { ...this.definition(label), rollout: { version: label } };
    const options = features.resolve(definition);
    const open = openerOf(options.continuous, features.openers);
    return {
      options,
      model: {},
      engine: this.engineOf(label, functionEngine(definition.model.useFactory, open)),
      next: ({ version }) => this.planOf(version),
    };
  }

  /** The engine, which takes its time to load, and may fail; its open partitions are counted. */
  private engineOf(label: string, engine: Engine): Engine {
    return async (...site) => {
      await new Promise((resolve) => setTimeout(resolve, this.options.loadTime));
      if (this.fateOf.get(label) === 'fails') {
        throw new Error('a version that cannot be loaded');
      }
      const opened = await engine(...site);
      for (const partition of opened.partitions) {
        const close = partition.close.bind(partition);
        this.open++;
        partition.close = async () => {
          await close();
          this.open--;
        };
      }
      return opened;
    };
  }

  /** The labels of the versions that a call may be routed to now; undefined if it is refused. */
  protected routesOf({ tenant, version }: CallOptions): readonly (string | undefined)[] {
    return version === undefined && tenant === undefined
      ? this.serving
          .versions()
          .filter(({ role, share }) => role === 'active' || (role === 'canary' && share !== 0))
          .map((each) => each.version)
      : [this.serving.versionFor(undefined, { tenant, version })];
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
  protected optionsOf({ tenant, version, priority, timeout, leaves }: Call): CallOptions {
    const caller = new AbortController();
    if (leaves !== undefined) {
      setTimeout(() => caller.abort(LEFT), leaves);
    }
    return {
      priority,
      ...(tenant !== undefined && { tenant }),
      ...(version !== undefined && { version }),
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
      (code === 'SERVING_UNAVAILABLE' && this.hasDrained) ||
      (code === 'SERVING_UNKNOWN_VERSION' && each.version !== undefined) ||
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
  readonly steps: number;
  readonly fails: boolean;
}

/** The answer to a row or to a batch, of a function or of a generator. */
type Answer = string | readonly string[] | readonly (readonly string[])[];

/** A batch function or generator, with keys, costs, shared replies, and rows that fail. */
class FunctionPlay extends Play<Batch | Row, Answer> {
  /** For each row, how often each version has run it. */
  private readonly runs = new Map<number, Record<string, number>>();
  protected n = 0;

  protected definition(label: string): FunctionServingDefinition {
    const { batchTimeout, hasKeys, preservesOrder, cost, isolatesFailures, shares } = this.options;
    const { queue, ...limits } = this.limits;
    return {
      ...limits,
      batchTimeout,
      ...(hasKeys && { batchKeys: KEYS }),
      queue: { ...queue, ...(preservesOrder && { order: 'preserve' as const }) },
      ...(cost !== undefined && {
        batchSize: {
          rows: limits.batchSize,
          cost: { of: (row: unknown) => 1 + ((row as Row).n % 3), most: cost },
        },
      }),
      recovery: { idempotent: isolatesFailures },
      ...(shares !== 'nothing' && {
        deduplication: {
          singleFlight: true,
          ...(shares === 'replies' && { cache: { ttl: 1000 } }),
          key: ({ id }: Row) => id,
        },
      }),
      model: {
        useFactory: () =>
          this.isGenerator
            ? (rows: readonly Row[], { key }: BatchContext) => this.stepped(label, key, rows)
            : async (rows: readonly Row[], { key }: BatchContext) => {
                await this.ran(label, rows);
                return rows.map(({ whole }) => `${label}/${key}/${whole}`);
              },
      },
    };
  }

  private get isGenerator(): boolean {
    const { isGenerator, shares } = this.options;
    return isGenerator && shares === 'nothing';
  }

  protected async ran(label: string, rows: readonly Row[]): Promise<void> {
    for (const { n } of rows) {
      const runs = this.runs.get(n) ?? {};
      runs[label] = (runs[label] ?? 0) + 1;
      this.runs.set(n, runs);
    }
    await new Promise((resolve) => setTimeout(resolve, this.options.runTime));
    if (rows.some(({ fails }) => fails)) {
      throw new Error('a row that fails');
    }
  }

  private async *stepped(label: string, key: string, rows: readonly Row[]) {
    await this.ran(label, rows);
    for (let step = 0; rows.some(({ steps }) => step < steps); step++) {
      yield rows.map(({ whole, steps }) =>
        step < steps ? `${label}/${key}/${whole}.${step}` : DONE,
      );
      await new Promise((resolve) => setTimeout(resolve, this.options.runTime));
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
      return { id: each.id, whole, n, steps: each.steps, fails: !isShared && each.fails === true };
    });
    const input = isShared ? rows[0]! : Batch.stack(rows);
    const options = { ...this.optionsOf(each), ...(key !== undefined && { key }) };
    const isEasy = this.isEasy(each);
    const routes = this.routesOf(options);
    let label: string | undefined;
    try {
      const values = await this.answerOf(each, input, options);
      label = values[0]?.split('/')[0];
      const expected = rows.flatMap(({ whole, steps }) =>
        this.isGenerator
          ? Array.from(
              { length: steps },
              (_, step) => `${label}/${key ?? 'default'}/${whole}.${step}`,
            )
          : `${label}/${key ?? 'default'}/${whole}`,
      );
      if (values.join() !== expected.join() || !routes.includes(label)) {
        this.faults.push(`${values.join()} in place of ${expected.join()}, by ${routes.join()}`);
      }
    } catch (error) {
      this.explain(each, error, ['SERVING_BATCH_FAILED']);
      if (isEasy && LATE.includes((error as { code: string }).code)) {
        this.faults.push(`${JSON.stringify(each)} had enough time: ${String(error)}`);
      }
    }
    rows.forEach(({ n }) => this.checkRuns(n, label));
  }

  /** A row runs once on the version that answers, and its copy on a shadow; more often after failures. */
  private checkRuns(n: number, label: string | undefined): void {
    const most = this.options.isolatesFailures ? 4 : 1;
    const runs = Object.entries(this.runs.get(n) ?? {});
    const others = runs.filter(([by]) => by !== label && this.fateOf.get(by) !== 'shadow');
    if (runs.some(([, count]) => count > most) || others.length > (label === undefined ? 1 : 0)) {
      this.faults.push(`row ${n}, answered by ${label}, ran: ${JSON.stringify(runs)}`);
    }
  }

  /** True if the call has so much time that it must not be late. */
  protected isEasy(_call: Call): boolean {
    return false;
  }

  /** The values of the answer, row by row. */
  private async answerOf(
    { by }: Call,
    input: Batch | Row,
    options: CallOptions,
  ): Promise<readonly string[]> {
    if (by !== 'stream') {
      const answer: Answer = await this.serving[by](input, options);
      return [answer].flat(2);
    }
    const values: { readonly row: number; readonly value: string }[] = [];
    for await (const { output, batch } of this.serving.stream(input, options)) {
      const own = [output].flat(2);
      values.push(...own.map((value, i) => ({ row: batch.offset + i, value })));
    }
    // The steps of a generator come in turns.
    return this.isGenerator
      ? values.toSorted((a, b) => a.row - b.row).map(({ value }) => value)
      : values.map(({ value }) => value);
  }
}

/** Nothing but calls, which stay and succeed, after lone calls that teach the time of one row. */
class SteadyPlay extends FunctionPlay {
  constructor({ steps, timeout = 30, ...options }: Scenario) {
    super({
      ...options,
      timeout,
      hasKeys: false,
      cost: undefined,
      shares: 'nothing',
      isGenerator: false,
      drains: false,
      steps: steps.flatMap((each) =>
        each.kind === 'call'
          ? { ...each, ...STEADY, by: each.by === 'run' ? 'batchedRun' : each.by }
          : each.kind === 'wait'
            ? each
            : [],
      ),
    });
  }

  protected override async warmUp(): Promise<void> {
    for (let i = 0; i < 10; i++) {
      const n = this.n++;
      await passTime(
        this.serving.batchedRun(
          { id: `lone ${n}`, whole: `${n}`, n, steps: 1, fails: false },
          { timeout: 1000 },
        ),
        1,
      );
    }
  }

  /**
   * One batch holds the call and all that wait, and its time is that of three batches.
   */
  protected override isEasy({ timeout: own, rows }: Call): boolean {
    const { timeout, runTime, batchTimeout, batchSize } = this.options;
    return (
      this.serving.queued + rows <= batchSize && (own ?? timeout!) > 3 * runTime + batchTimeout
    );
  }
}

/** A call that no other overtakes. */
const STEADY = {
  leaves: undefined,
  fails: undefined,
  version: undefined,
  tenant: undefined,
  priority: 0,
} as const;

/** The sum of a session, and the version that it stays with. */
interface Sum {
  readonly sum: number;
  readonly label: string;
}

/** Sessions whose state is a sum: a call that fails leaves it as it was. */
class SessionsPlay extends Play<number, Sum> {
  private readonly sessions: {
    readonly session: ServingSession<number, Sum>;
    readonly label: string | undefined;
  }[] = [];
  /** Ends of the steps that run. */
  private running: (() => void)[] = [];
  private clock: NodeJS.Timeout | undefined;
  /** For each session, the outcomes of its calls in the order in which they were made. */
  private readonly outcomes: {
    readonly n: number;
    readonly reply: Promise<number | undefined>;
  }[][] = [];

  protected definition(label: string): FunctionServingDefinition {
    return {
      ...this.limits,
      model: {
        useFactory:
          () =>
          async (rows: readonly number[], { states }: BatchContext) => {
            const sums = rows.map((row, i) => ((states[i] as number | undefined) ?? 0) + row);
            await this.tick();
            sums.forEach((sum, i) => (states[i] = sum));
            return sums.map((sum) => ({ sum, label }));
          },
        sessions: {},
      },
    };
  }

  /**
   * Resolves at the next tick of a clock, whose timer is older than the step: so a step can end at
   * the very time of its deadline, after the timer of a call and before the timer of its step.
   */
  private tick(): Promise<void> {
    return new Promise((resolve) => {
      this.running.push(resolve);
      this.clock ??= setTimeout(() => this.ticked(), this.options.runTime);
    });
  }

  private ticked(): void {
    const ended = this.running.splice(0);
    this.clock =
      ended.length > 0 ? setTimeout(() => this.ticked(), this.options.runTime) : undefined;
    ended.forEach((end) => end());
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
    const { version, tenant: _, ...options } = this.optionsOf(each);
    let opened = this.sessions[at];
    if (!opened) {
      const label = this.serving.versionFor(undefined, { version });
      try {
        const session = this.serving.open({ version });
        opened = this.sessions[at] = { session, label: version && label };
      } catch (error) {
        this.explain(each, error);
        return;
      }
    }
    const { session, label } = opened;
    const calls = (this.outcomes[at] ??= []);
    const n = 2 ** (calls.length % 30);
    const reply = session.run(n, options).then(
      (answer) => {
        if (answer.label !== (label ?? answer.label)) {
          this.faults.push(`a session of version ${label} is answered by ${answer.label}`);
        }
        this.sessions[at] = { session, label: answer.label };
        return answer.sum;
      },
      (error: unknown) => {
        this.explain(each, error, ['SERVING_SESSION_ENDED']);
        return undefined;
      },
    );
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
  readonly label: number;
  next: number;
}

/** Sequences, whose steps also give promises, errors, and results that throw when they are read. */
class SequencePlay extends Play<Prompt, number[]> {
  /** For each row, its place in the order of arrivals. */
  private readonly firstStarts = new Map<number, number>();
  private readonly pauses = new Map<number, number>();
  private n = 0;

  protected definition(label: string): FunctionServingDefinition {
    const { hasKeys, cost = 100 } = this.options;
    // The rows that are present on each partition.
    const partitions = Array.from({ length: this.options.partitions }, () => new Set<Progress>());
    return {
      ...this.limits,
      ...(hasKeys && { batchKeys: KEYS }),
      model: {
        useFactory: ({ partition }: { readonly partition: number }) =>
          this.model(label, partitions[partition]!, cost),
        sequence: { maxCost: cost },
      },
    };
  }

  /** The number of places is fixed. */
  protected override resize(): void {}

  private model(
    label: string,
    present: Set<Progress>,
    most: number,
  ): SequenceModel<Prompt, number, Progress> {
    // Rows grow dearer, so that younger ones are paused.
    const costOf = ({ n }: Prompt, values: number): number => 1 + (n % 3) + (values > 1 ? 1 : 0);
    return {
      start: (prompts, { emitted }) =>
        prompts.map((prompt, i) => {
          const state = { ...prompt, label: Number(label), next: emitted[i]!.length };
          if (!this.firstStarts.has(state.n)) {
            this.firstStarts.set(state.n, this.firstStarts.size);
          }
          present.add(state);
          return state;
        }),
      step: async (states) => {
        const cost = [...present].reduce((sum, state) => sum + costOf(state, state.next), 0);
        if (cost > most) {
          this.faults.push(`rows of a cost of ${cost} run on a partition, and ${most} may`);
        }
        await new Promise((resolve) => setTimeout(resolve, this.options.runTime));
        return states.map((state) => resultOf(state) as number);
      },
      end: (state, reason) => {
        if (reason === 'paused') {
          this.checkPause(state, present);
        }
        present.delete(state);
      },
      cost: costOf,
    };
  }

  /** The oldest row is never paused, and no row more than four times. */
  private checkPause(state: Progress, present: ReadonlySet<Progress>): void {
    const { n } = state;
    const pauses = (this.pauses.get(n) ?? 0) + 1;
    this.pauses.set(n, pauses);
    const age = this.firstStarts.get(n)!;
    const isOldest = [...present].every((other) => this.firstStarts.get(other.n)! >= age);
    // Rows of different keys start at the same time, in any order.
    if (pauses > 4 || (isOldest && !this.options.hasKeys)) {
      this.faults.push(`row ${n} is paused, ${pauses} times, the oldest: ${isOldest}`);
    }
  }

  protected async call(each: Call): Promise<void> {
    const { steps, oddity } = each;
    const n = this.n++;
    const key = this.options.hasKeys ? each.key : undefined;
    const options = { ...this.optionsOf(each), ...(key !== undefined && { key }) };
    const routes = this.routesOf(options);
    try {
      const values = await this.valuesOf(each, { n, steps, oddity }, options);
      const label = Math.floor(values[0]! / OF_VERSION);
      const expected = Array.from({ length: steps }, (_, i) => OF_VERSION * label + 100 * n + i);
      const isOwn = values.join() === expected.join() && routes.includes(`${label}`);
      if (!isOwn || FAILING.includes(oddity)) {
        this.faults.push(
          `${values.join()} in place of ${expected.join()} (${oddity}), by ${routes.join()}`,
        );
      }
    } catch (error) {
      const own = FAILING.includes(oddity);
      this.explain(each, error, own ? [String(error), 'SERVING_INVALID_OUTPUT'] : []);
      if (!own && (error as Error).message === 'odd') {
        this.faults.push(`row ${n} has the error of another`);
      }
    }
  }

  private async valuesOf(
    { by }: Call,
    prompt: Prompt,
    options: CallOptions,
  ): Promise<readonly number[]> {
    // `run` has partitions of its own, whose rows the model cannot tell from others.
    if (by !== 'stream') {
      return this.serving.batchedRun(prompt, options);
    }
    const values: number[] = [];
    for await (const { output } of this.serving.stream(prompt, options)) {
      values.push(...[output as number | number[]].flat());
    }
    return values;
  }
}

/** Values of a version are from its label times this on. */
const OF_VERSION = 1_000_000;

const FAILING: readonly string[] = ['error', 'throwing', 'rejected'];

function resultOf(state: Progress): unknown {
  const { label, n, steps, oddity } = state;
  const value = OF_VERSION * label + 100 * n + state.next++;
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

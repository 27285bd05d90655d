import { readFileSync } from 'node:fs';
import { setTimeout as pause } from 'node:timers/promises';
import { beforeEach, describe, expect, it } from '@jest/globals';
import { type INestApplication, type INestApplicationContext, Logger } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import * as fc from 'fast-check';
import {
  Batch,
  type CallOptions,
  createServing,
  isServingError,
  type LocalServing,
  type ServingDefinition,
  ServingModule,
  ServingService,
  type ServingVersion,
  Tensor,
} from 'nestjs-serving';
import { ServingClusterModule } from 'nestjs-serving/distribution';
import { endpoint, InferenceProtocolModule } from 'nestjs-serving/inference-protocol';
import { GrpcDoor } from '../../../lib/extensions/inference-protocol/server/grpc/grpc-door.js';
import { ClusterClient } from '../../fixtures/cluster/use-cluster-processes.js';
import { tcp } from '../../fixtures/cluster/wirings.js';
import { type AppProcess, useAppProcesses } from '../../fixtures/http/app-process.js';
import { gainModel, summingModel } from '../../fixtures/models/models.js';
import { worker } from '../../fixtures/partitions/worker.js';

/**
 * Random servings whose rows leave the thread of the application, under random calls, reloads and
 * deaths. Each call gets exactly its own answer, once, from a version that had calls then, or an error
 * that the play explains; each call ends; after the close no handle, thread or process is left.
 *
 * The unit test of any serving is about its decisions, and this one about their parts: real threads,
 * processes, models, servers and nodes. Nothing is expected of how long they take.
 */
describe('Any system under any calls', () => {
  const nodes = useAppProcesses();

  beforeEach(() => Logger.overrideLogger(false));

  const systems: Readonly<Record<string, (options: Options) => System>> = {
    'a module in threads': (options) => new ModuleSystem(options, 'thread'),
    'a module in processes': (options) => new ModuleSystem(options, 'process'),
    'a model in the main thread': (options) => new ModelSystem(options, 'none'),
    'a model in threads': (options) => new ModelSystem(options, 'thread'),
    'a model in processes': (options) => new ModelSystem(options, 'process'),
    'a model on a server': (options) => new EndpointSystem(options),
    'sequences in threads': (options) => new SequenceSystem(options, 'thread'),
    'sequences in processes': (options) => new SequenceSystem(options, 'process'),
    'sessions of a module in threads': (options) => new TallySystem(options, 'thread'),
    'sessions of a module in processes': (options) => new TallySystem(options, 'process'),
    'sessions of a model in threads': (options) => new SummingSystem(options, 'thread'),
    'sessions of a model in processes': (options) => new SummingSystem(options, 'process'),
    'two nodes over TCP': (options) => new ClusterSystem(options, nodes),
    'sessions on two nodes over TCP': (options) => new SessionClusterSystem(options, nodes),
  };
  it.each(Object.keys(systems))(
    '[T2] answers each call with its own rows once, ends each, and leaves nothing behind: %s',
    async (kind) => {
      await fc.assert(
        fc.asyncProperty(scenario, async ({ steps, ...options }) => {
          const play = new Play(systems[kind]!(options), options);

          expect(await play.run(steps)).toEqual([]);
        }),
        { numRuns: RUNS, interruptAfterTimeLimit: LIMIT },
      );
    },
  );
});

/** With SEED other cases, and more of them. */
const RUNS = process.env['SEED'] === undefined ? 4 : 20;

/** Milliseconds after which what has not ended hangs. */
const HANGS = 120_000;

/** Milliseconds after which no further play begins, so that a failure is reported in time. */
const LIMIT = 400_000;

const step = fc.oneof(
  {
    weight: 12,
    arbitrary: fc.record({
      kind: fc.constant('call' as const),
      by: fc.constantFrom('batchedRun' as const, 'batchedRun' as const, 'stream' as const),
      rows: fc.integer({ min: 1, max: 3 }),
      tenant: fc.constantFrom(undefined, 'a', 'b'),
      timeout: fc.constantFrom(undefined, undefined, undefined, 5, 20, 1000),
      leaves: fc.constantFrom(undefined, undefined, undefined, undefined, 0, 5),
    }),
  },
  {
    weight: 4,
    arbitrary: fc.record({ kind: fc.constant('wait' as const), ms: fc.constantFrom(0, 1, 5, 30) }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('kill' as const) }) },
  {
    weight: 1,
    arbitrary: fc.record({
      kind: fc.constant('reload' as const),
      as: fc.constantFrom({}, { canary: 0.5 }, { shadow: 1 }),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      kind: fc.constant('change' as const),
      to: fc.constantFrom('promote' as const, 'rollback' as const),
    }),
  },
);

const scenario = fc.record({
  batchSize: fc.integer({ min: 1, max: 4 }),
  partitions: fc.integer({ min: 1, max: 2 }),
  idempotent: fc.boolean(),
  drain: fc.boolean(),
  /** Milliseconds that a batch of a module takes. */
  ms: fc.constantFrom(0, 2, 10),
  /** Closes before the calls have ended. */
  isHasty: fc.boolean(),
  steps: fc.array(step, { minLength: 5, maxLength: 40, size: 'max' }),
});

type Step = typeof step extends fc.Arbitrary<infer T> ? T : never;
type Call = Extract<Step, { kind: 'call' }>;
type Reload = Extract<Step, { kind: 'reload' }>['as'];
type Options = Omit<typeof scenario extends fc.Arbitrary<infer T> ? T : never, 'steps'>;

/** A system under test: its servings multiply rows by a gain. */
interface System {
  readonly mostRows: number;
  start(): Promise<void>;
  /** The results of the rows, in their order. */
  call(rows: readonly number[], by: Call['by'], options: CallOptions): Promise<readonly number[]>;
  /** The gains that a call with these options may have now. */
  gains(options: CallOptions): readonly number[];
  /** Ends a part of it, and whatever that part runs. */
  kill(): Promise<void>;
  reload(as: Reload): Promise<ServingVersion | undefined>;
  /** Descriptions of forbidden events that occurred. */
  faults(): readonly string[];
  close(): Promise<void>;
}

const LEFT = new Error('the caller left');
const REFUSED = ['SERVING_OVERLOADED', 'SERVING_CLOSED', 'SERVING_DEADLINE_TOO_SHORT'];
const LOST = [
  'SERVING_PARTITION_LOST',
  'SERVING_NODE_LOST',
  'SERVING_UNAVAILABLE',
  'SERVING_SESSION_ENDED',
];

class Play {
  private readonly faults: string[] = [];
  private readonly underWay = new Set<string>();
  private readonly versions: ServingVersion[] = [];
  private hasKilled = false;
  private isClosing = false;
  private n = 0;

  constructor(
    private readonly system: System,
    private readonly options: Options,
  ) {}

  /** Runs the steps, and returns a description of each broken promise. */
  async run(steps: readonly Step[]): Promise<readonly string[]> {
    const { system, faults, underWay } = this;
    const before = resources();
    await system.start();
    for (const each of steps) {
      await this.take(each);
    }
    if (!this.options.isHasty) {
      await this.until(() => underWay.size === 0);
    }
    this.isClosing = true;
    const closed = system.close();
    this.follow('the close', closed);
    await this.until(() => underWay.size === 0);
    faults.push(...[...underWay].map((what) => `${what} has not ended`), ...system.faults());
    let left: readonly string[] = [];
    await this.until(() => {
      left = beyond(resources(), before);
      return left.length === 0;
    });
    faults.push(...left.map((what) => `${what} is left after the close`));
    return faults;
  }

  private async take(each: Step): Promise<void> {
    const { system, versions } = this;
    switch (each.kind) {
      case 'call':
        this.follow(`a call of ${JSON.stringify(each)}`, this.call(each));
        break;
      case 'wait':
        await pause(each.ms);
        break;
      case 'kill':
        this.hasKilled = true;
        this.follow('a kill', system.kill());
        break;
      case 'reload':
        this.follow(
          'a reload',
          refusable(async () => {
            const version = await system.reload(each.as);
            versions.push(...(version ? [version] : []));
          }),
        );
        break;
      default:
        this.follow(
          'a change',
          refusable(async () => versions.at(-1)?.[each.to]()),
        );
    }
  }

  private async call(each: Call): Promise<void> {
    const { tenant, timeout, leaves, by } = each;
    const rows = Array.from({ length: Math.min(each.rows, this.system.mostRows) }, () => this.n++);
    const caller = new AbortController();
    const leaving = leaves === undefined ? undefined : setTimeout(() => caller.abort(LEFT), leaves);
    const options = { tenant, timeout, ...(leaving && { signal: caller.signal }) };
    const gains = this.system.gains(options);
    try {
      const values = await this.system.call(rows, by, options);
      const isOwn = gains.some((gain) => rows.map((row) => gain * row).join() === values.join());
      if (!isOwn) {
        this.faults.push(`${values.join()} for ${rows.join()}, with a gain of ${gains.join()}`);
      }
    } catch (error) {
      this.explain(each, error);
    } finally {
      clearTimeout(leaving);
    }
  }

  private explain(each: Call, error: unknown): void {
    const code = error === LEFT ? 'LEFT' : isServingError(error) ? error.code : String(error);
    const isExplained =
      (code === 'LEFT' && each.leaves !== undefined) ||
      (code === 'SERVING_DEADLINE_EXCEEDED' && each.timeout !== undefined) ||
      REFUSED.includes(code) ||
      (LOST.includes(code) && this.hasKilled) ||
      (code === 'SERVING_SESSION_ENDED' && this.isClosing);
    if (!isExplained) {
      this.faults.push(`${JSON.stringify(each)} failed with ${code}: ${String(error)}`);
    }
  }

  /** Waits for the work; what fails in it is a fault. */
  private follow(what: string, work: Promise<unknown>): void {
    const name = `${what} (${this.underWay.size})`;
    this.underWay.add(name);
    void work
      .catch((error: unknown) => this.faults.push(`${what}: ${String(error)}`))
      .finally(() => this.underWay.delete(name));
  }

  /** Resolves when it is so, or when that hangs. */
  private async until(isSo: () => boolean): Promise<void> {
    const end = performance.now() + HANGS;
    while (!isSo() && performance.now() < end) {
      await pause(10);
    }
  }
}

/** Runs a change; the serving may refuse it with a typed error. */
async function refusable(change: () => Promise<unknown>): Promise<void> {
  try {
    await change();
  } catch (error) {
    if (!isServingError(error)) {
      throw error;
    }
  }
}

/** The handles of this process, also those that do not hold it, its threads, and its children. */
function resources(): readonly string[] {
  const { libuv, workers } = process.report.getReport() as unknown as Report;
  // All timers of Node share one handle.
  const handles = libuv.map(({ type }) => type).filter((type) => type !== 'timer');
  const timers = process.getActiveResourcesInfo().filter((type) => type === 'Timeout');
  return [...handles, ...timers, ...workers.map(() => 'thread'), ...children()];
}

interface Report {
  readonly libuv: readonly { readonly type: string }[];
  readonly workers: readonly object[];
}

/** The processes that this one has started. */
function children(): readonly string[] {
  return process.platform === 'linux'
    ? readFileSync(`/proc/self/task/${process.pid}/children`, 'utf8').split(' ').filter(Boolean)
    : [];
}

/** Those of the values that the others do not have as often. */
function beyond(values: readonly string[], others: readonly string[]): readonly string[] {
  const left = [...others];
  return values.filter((value) => {
    const at = left.indexOf(value);
    left.splice(at, at < 0 ? 0 : 1);
    return at < 0;
  });
}

/** A serving in this application. */
abstract class LocalSystem<
  Input,
  Output,
  Isolation extends 'thread' | 'process' | 'none' = 'thread' | 'process',
> implements System {
  readonly mostRows: number = Infinity;
  protected serving!: LocalServing<Input, Output, Output>;

  constructor(
    protected readonly options: Options,
    protected readonly isolation: Isolation,
  ) {}

  async start(): Promise<void> {
    this.serving = createServing(await this.definition()) as unknown as typeof this.serving;
    await this.serving.start();
  }

  protected abstract definition(): ServingDefinition | Promise<ServingDefinition>;
  protected abstract inputOf(rows: readonly number[]): Input;
  protected abstract valuesOf(output: Output): readonly number[];

  async call(
    rows: readonly number[],
    by: Call['by'],
    options: CallOptions,
  ): Promise<readonly number[]> {
    const { serving } = this;
    const input = this.inputOf(rows);
    if (by === 'batchedRun') {
      return this.valuesOf(await serving.batchedRun(input, options));
    }
    const values: number[] = [];
    for await (const { output } of serving.stream(input, options)) {
      values.push(...this.valuesOf(output));
    }
    return values;
  }

  gains(_options: CallOptions): readonly number[] {
    return [1];
  }

  /** Ends one of the processes, or a thread. */
  async kill(): Promise<void> {
    const [pid] = children();
    if (this.isolation !== 'process') {
      await this.endThread().catch(() => {});
    } else if (pid !== undefined) {
      process.kill(Number(pid), 'SIGKILL');
    }
  }

  /** Runs a row that ends its thread; a model has no such row. */
  protected async endThread(): Promise<unknown> {
    return undefined;
  }

  async reload(as: Reload): Promise<ServingVersion | undefined> {
    return this.serving.reload(as);
  }

  faults(): readonly string[] {
    return [];
  }

  close(): Promise<void> {
    return this.serving.close();
  }

  protected get common() {
    const { batchSize, idempotent, drain } = this.options;
    return { name: 'net', batchSize, recovery: { idempotent }, shutdown: { drain } };
  }
}

class ModuleSystem extends LocalSystem<Batch, readonly number[]> {
  private readonly begun = new Int32Array(new SharedArrayBuffer(4 * 1000));

  protected definition(): ServingDefinition {
    const { partitions, ms } = this.options;
    const { isolation } = this;
    const own = { ms, ...(isolation === 'thread' && { begun: this.begun }) };
    return {
      ...this.common,
      model: { useFile: worker('scaling'), isolation },
      partitions: Array.from({ length: partitions }, () => own),
    };
  }

  protected inputOf(rows: readonly number[]): Batch {
    return Batch.ofValues(rows);
  }

  protected valuesOf(output: readonly number[]): readonly number[] {
    return output;
  }

  override gains(): readonly number[] {
    return [3];
  }

  protected override endThread(): Promise<unknown> {
    return this.call([-1], 'batchedRun', {});
  }

  override faults(): readonly string[] {
    const { begun, options } = this;
    return [...begun].flatMap((runs, row) =>
      runs > 1 && !options.idempotent ? `row ${row} ran ${runs} times` : [],
    );
  }
}

type Outputs = Readonly<Record<'y', Tensor>>;

/** The rows of a model have each number twice. */
function twice(rows: readonly number[]): { readonly x: Tensor } {
  const data = Float32Array.from(rows.flatMap((row) => [row, row]));
  return { x: new Tensor('float32', data, [rows.length, 2]) };
}

function once({ y }: Outputs): readonly number[] {
  return [...(y.data as Float32Array)].filter((_, at) => at % 2 === 0);
}

class ModelSystem extends LocalSystem<object, Outputs, 'thread' | 'process' | 'none'> {
  private lastGain = 1;
  private readonly gainOf = new Map([['1', this.lastGain]]);
  protected readonly inputOf = twice;
  protected readonly valuesOf = once;

  protected definition(): ServingDefinition | Promise<ServingDefinition> {
    const { isolation } = this;
    const partitions = isolation === 'none' ? 1 : this.options.partitions;
    return { ...this.common, model: { file: gainModel(this.lastGain), isolation }, partitions };
  }

  override gains({ tenant }: CallOptions): readonly number[] {
    const { serving, gainOf } = this;
    const labels =
      tenant === undefined
        ? serving
            .versions()
            .filter(({ role }) => role === 'active' || role === 'canary')
            .map(({ version }) => version)
        : [serving.versionFor(undefined, { tenant })];
    return labels.map((label) => gainOf.get(label!)!);
  }

  override async reload(as: Reload): Promise<ServingVersion | undefined> {
    const gain = ++this.lastGain;
    this.gainOf.set(`${gain}`, gain);
    return this.serving.reload({ model: gainModel(gain), version: `${gain}`, ...as });
  }
}

/** Row n has the values `n.0` and `n.1`, one in each step. */
class SequenceSystem extends LocalSystem<object, readonly string[]> {
  override readonly mostRows = 1;

  protected definition(): ServingDefinition {
    const { partitions, ms } = this.options;
    return {
      ...this.common,
      model: { useFile: worker('sequence'), sequence: {}, isolation: this.isolation },
      partitions: Array.from({ length: partitions }, () => ({ pace: ms })),
    };
  }

  protected inputOf([row]: readonly number[]): object {
    return { name: `${row}.`, steps: 2 };
  }

  protected valuesOf(output: readonly string[]): readonly number[] {
    return [output].flat().map(Number);
  }

  /** The rows themselves if all their values came, and no others. */
  override async call(
    rows: readonly number[],
    by: Call['by'],
    options: CallOptions,
  ): Promise<readonly number[]> {
    const values = await super.call(rows, by, options);
    const own = rows.flatMap((row) => [row, row + 0.1]);
    return values.join() === own.join() ? rows : values;
  }

  protected override endThread(): Promise<unknown> {
    return this.serving.batchedRun({ name: 'last', steps: 1, fault: 'exits', at: 0 });
  }
}

/** Each call is a session, with a row in each of its steps. */
abstract class SessionSystem<Input, Output> extends LocalSystem<Input, Output> {
  /** The rows of a session, as its replies so far show them. */
  protected abstract rowsOf(replies: readonly (readonly number[])[]): readonly number[];

  override call(
    rows: readonly number[],
    _by: Call['by'],
    options: CallOptions,
  ): Promise<readonly number[]> {
    return inSession(rows, options, ({ tenant }) => {
      const session = this.serving.open({ tenant });
      const replies: (readonly number[])[] = [];
      return {
        run: async (row, own) => {
          replies.push(this.valuesOf(await session.run(this.inputOf([row]), own)));
          return this.rowsOf(replies);
        },
        close: () => session.close(),
      };
    });
  }
}

/** Each reply lists the rows of its session. */
class TallySystem extends SessionSystem<string, readonly string[]> {
  protected definition(): ServingDefinition {
    const { partitions } = this.options;
    const { isolation } = this;
    return {
      ...this.common,
      model: { useFile: worker('tally'), isolation, sessions: {} },
      partitions,
    };
  }

  protected inputOf([row]: readonly number[]): string {
    return `${row}`;
  }

  protected valuesOf(output: readonly string[]): readonly number[] {
    return output.map(Number);
  }

  protected rowsOf(replies: readonly (readonly number[])[]): readonly number[] {
    return replies.at(-1)!;
  }

  protected override async endThread(): Promise<void> {
    const session = this.serving.open();
    await session.run('exit').catch(() => {});
    await session.close();
  }
}

/** Each reply is the sum of the rows of its session. */
class SummingSystem extends SessionSystem<object, Outputs> {
  protected readonly inputOf = twice;
  protected readonly valuesOf = once;

  protected definition(): ServingDefinition {
    const { partitions } = this.options;
    const { isolation } = this;
    const state = { sum: 'total' };
    const model = { file: summingModel('n'), state, fetches: ['y', 'total'], isolation };
    return { ...this.common, model, partitions };
  }

  protected rowsOf(replies: readonly (readonly number[])[]): readonly number[] {
    const sums = replies.flat();
    return sums.map((sum, at) => sum - (sums[at - 1] ?? 0));
  }

  override async reload(as: Reload): Promise<ServingVersion | undefined> {
    return this.serving.reload({ model: summingModel('n'), ...as });
  }
}

interface Session {
  /** Resolves with the session's rows, as its replies so far show them. */
  run(row: number, options: CallOptions): Promise<readonly number[]>;
  close(): Promise<unknown>;
}

/** Runs a session of the rows. A step that failed by its deadline runs again: it left no trace. */
async function inSession(
  rows: readonly number[],
  { tenant, ...options }: CallOptions,
  open: (options: CallOptions) => Session,
): Promise<readonly number[]> {
  const session = open({ tenant });
  let shown: readonly number[] = [];
  try {
    for (const row of rows) {
      try {
        shown = await session.run(row, options);
      } catch (error) {
        if (!isServingError(error) || error.code !== 'SERVING_DEADLINE_EXCEEDED') {
          throw error;
        }
        shown = await session.run(row, {});
      }
    }
  } finally {
    await session.close();
  }
  return shown;
}

/** The same model on a server of this package, which closes and opens again. */
class EndpointSystem extends ModelSystem {
  private server: INestApplication | undefined;
  private port = 0;
  private restarts: Promise<void> = Promise.resolve();

  constructor(options: Options) {
    super(options, 'thread');
  }

  protected override async definition(): Promise<ServingDefinition> {
    await this.open();
    return { ...this.common, model: endpoint(`grpc://127.0.0.1:${this.port}`, 'net') };
  }

  override kill(): Promise<void> {
    return (this.restarts = this.restartAfter(this.restarts));
  }

  override async reload(): Promise<undefined> {}

  override async close(): Promise<void> {
    await super.close();
    await this.restarts;
    await this.server!.close();
  }

  private async restartAfter(before: Promise<void>): Promise<void> {
    await before;
    await this.server!.close();
    await this.open();
  }

  private async open(): Promise<void> {
    const root = {
      module: class {},
      imports: [
        ServingModule.forRoot({ servings: [{ name: 'net', model: gainModel(1) }] }),
        InferenceProtocolModule.forRoot({ grpc: { host: '127.0.0.1', port: this.port } }),
      ],
    };
    this.server = await NestFactory.create(root, { logger: false, abortOnError: false });
    await this.server.init();
    this.port = this.server.get(GrpcDoor).port!;
  }
}

/** Two nodes in processes of their own, which are killed and start again on their ports. */
class ClusterSystem implements System {
  readonly mostRows: number = 1;
  protected readonly as: 'answering' | 'tallying' = 'answering';
  protected client!: INestApplicationContext;
  private readonly nodes: { process: AppProcess; readonly port: number }[] = [];
  private isOver = false;
  private kills: Promise<void> = Promise.resolve();

  constructor(
    private readonly options: Options,
    private readonly startProcess: ReturnType<typeof useAppProcesses>,
  ) {}

  async start(): Promise<void> {
    for (let i = 0; i < 2; i++) {
      this.nodes.push(await this.node(0));
    }
    const root = {
      module: class {},
      imports: [
        ServingModule.forRoot(),
        ServingClusterModule.forRoot(tcp().options(this.nodes.map(({ port }) => port))),
      ],
    };
    this.client = await NestFactory.createApplicationContext(root, {
      logger: false,
      abortOnError: false,
    });
    await new ClusterClient(this.client).untilNodes('net', 2);
  }

  /** The sum of one number is that number. */
  async call(
    [n]: readonly number[],
    by: Call['by'],
    options: CallOptions,
  ): Promise<readonly number[]> {
    const servings = this.client.get(ServingService);
    const input = { id: `${n}`, numbers: [n] };
    const values: { readonly sum: number }[] = [];
    if (by === 'batchedRun') {
      values.push(await servings.batchedRun<object, { sum: number }>('net', input, options));
    } else {
      for await (const { output } of servings.stream<object, { sum: number }>(
        'net',
        input,
        options,
      )) {
        values.push(...[output].flat());
      }
    }
    return values.map(({ sum }) => sum);
  }

  gains(): readonly number[] {
    return [1];
  }

  kill(): Promise<void> {
    return (this.kills = this.killAfter(this.kills));
  }

  async reload(): Promise<undefined> {}

  faults(): readonly string[] {
    return [];
  }

  async close(): Promise<void> {
    await this.client.close();
    this.isOver = true;
    await this.kills;
    for (const { process: node } of this.nodes) {
      node.kill('SIGTERM');
      await node.ended;
    }
  }

  /** One node at a time, so that another is there. */
  private async killAfter(before: Promise<void>): Promise<void> {
    await before;
    if (!this.isOver) {
      const killed = this.nodes.shift()!;
      killed.process.kill('SIGKILL');
      await killed.process.ended;
      this.nodes.push(await this.node(killed.port));
    }
  }

  private async node(port: number): Promise<{ process: AppProcess; port: number }> {
    const { batchSize, idempotent } = this.options;
    const node = this.startProcess('cluster-node', {
      servings: [{ name: 'net', as: this.as, batchSize, recovery: { idempotent } }],
      distribution: tcp().options(
        this.nodes.map((other) => other.port),
        port,
      ),
    });
    const [places] = await node.messages<{ readonly port: number }>('up');
    return { process: node, port: places!.port };
  }
}

class SessionClusterSystem extends ClusterSystem {
  override readonly mostRows = Infinity;
  protected override readonly as = 'tallying';

  override call(
    rows: readonly number[],
    _by: Call['by'],
    options: CallOptions,
  ): Promise<readonly number[]> {
    return inSession(rows, options, ({ tenant }) => {
      const session = this.client
        .get(ServingService)
        .open<number, readonly number[]>('net', { tenant });
      return { run: (row, own) => session.run(row, own), close: () => session.close() };
    });
  }
}

import type { Batch } from '../../core/batch/batch.js';
import type { Tensor } from '../../core/batch/tensor.js';
import { isServingError, messageOf, ServingLoadError } from '../../core/errors.js';
import type {
  BatchInfo,
  BatchListener,
  PartitionOptions,
} from '../../core/partitions/batch-function.js';
import type { OpenedEngine } from '../../core/partitions/engine.js';
import type { SharedByThreads } from '../../core/partitions/model/remote-models.js';
import {
  NotStartedError,
  type PartitionResult,
  RevokedError,
} from '../../core/partitions/partition.js';
import { SpareMemory, spareOf } from '../../core/partitions/worker/transfer.js';
import { hashOf, sessionOf } from './model-content.js';
import { inWorkers, ModelPartition, type OpenModel } from './model-engine.js';
import { deviceOf, offeredBy, PinnedMemory } from './native-providers.js';
import { type NativeRuntime, nativeRuntime, RunLane } from './native-runtime.js';
import {
  foreignOption,
  NativeRunOptions,
  type NativeSession,
  openNativeSession,
} from './native-session.js';
import { modelOf, type OnnxModel, type OnnxTask } from './onnx-model.js';
import {
  createSession,
  loadError,
  type OpenedSession,
  providersOf,
  withShortSpin,
} from './onnx-session.js';

/** Threads where native sessions cannot run the model, or have not earned it yet. */
export const nativelyOrInThreads: OpenModel = async (tasks, ...others) => {
  const obstacle = await obstacleFor(tasks);
  if (obstacle === undefined) {
    return openPartitions(tasks);
  }
  const opened = await inWorkers('thread')(tasks, ...others);
  return { ...opened, where: `${opened.where}, since ${obstacle}` };
};

/** @throws ServingLoadError naming the obstacle to native sessions */
export const natively: OpenModel = async (tasks) => {
  const obstacle = await obstacleFor(tasks, ['cpu', 'cuda']);
  if (obstacle !== undefined) {
    throw new ServingLoadError(
      `isolation: 'native' cannot be used, since ${obstacle}; without it, threads run the model`,
    );
  }
  return openPartitions(tasks);
};

/** Partitions run at the same time on one session, which all servings of the content share. */
async function openPartitions(tasks: readonly OnnxTask[]): Promise<OpenedEngine> {
  const partitions: NativePartition[] = [];
  try {
    const hash = await hashOf(tasks[0]!.model);
    for (const task of tasks) {
      partitions.push(await openPartition(task, hash));
    }
  } catch (cause) {
    await Promise.all(partitions.map((partition) => partition.close()));
    throw isServingError(cause) ? cause : loadError(tasks[0]!.model.name, cause);
  }
  const all = partitions.map(({ model }) => model.loaded);
  const { signature } = all[0]!;
  const { length } = partitions;
  const where = length === 1 ? 'natively' : `natively, ${length} runs at a time`;
  return { partitions, where, signature, providers: all.map(({ providers }) => providers) };
}

/** Why native sessions cannot run the tasks, or do not by themselves. */
async function obstacleFor(
  tasks: readonly Pick<OnnxTask, 'options'>[],
  devices: readonly string[] = ['cpu'],
): Promise<string | undefined> {
  for (const { options } of tasks) {
    const other = providersOf(options).find(({ name }) => !devices.includes(name));
    if (other) {
      return other.name === 'cuda'
        ? "native sessions on cuda are experimental (isolation: 'native')"
        : `native sessions run on cpu and cuda, and the session asks for ${other.name}`;
    }
    const foreign = foreignOption(options);
    if (foreign !== undefined) {
      return `native sessions have no option ${foreign}`;
    }
  }
  return nativeRuntime().then(() => undefined, messageOf);
}

async function openPartition(task: OnnxTask, hash: string): Promise<NativePartition> {
  const runtime = await nativeRuntime();
  const open = () => openedFor(task, runtime);
  const shared = await SharedSession.of(hash, task.options, open);
  const { session, providers } = shared.opened;
  const isOnCpu = providers.inUse === 'cpu';
  const turns = new Turns(runtime);
  const memory: RunMemory = isOnCpu
    ? new SpareMemory()
    : new PinnedMemory(runtime, session.address, deviceOf(task.options));
  const release = async (): Promise<void> => {
    await turns.release();
    memory.release?.();
    await shared.leave();
  };
  const own = {
    inputMetadata: session.inputMetadata,
    outputMetadata: session.outputMetadata,
    run: (...run: [Parameters<NativeSession['run']>[0], readonly string[]]) =>
      session.run(...run, turns.options),
    release,
  };
  const model = await modelOf(own, providers, task);
  const short = new ShortRuns(isOnCpu && hasSteadyTime(model, task));
  return new NativePartition(model, turns, short, memory);
}

const sharedSessions = new Map<string, SharedSession>();

/** One session for each content and options, for all partitions and servings of the process. */
class SharedSession {
  private users = 0;
  private result: OpenedSession<NativeSession> | undefined;

  private constructor(
    private readonly id: string,
    private readonly opening: Promise<OpenedSession<NativeSession>>,
  ) {}

  /** @param hash of the model's content */
  static async of(
    hash: string,
    options: PartitionOptions,
    open: () => Promise<OpenedSession<NativeSession>>,
  ): Promise<SharedSession> {
    const id = `${hash} ${JSON.stringify(options)}`;
    const found = sharedSessions.get(id) ?? new SharedSession(id, open());
    sharedSessions.set(id, found);
    found.users++;
    try {
      found.result = await found.opening;
      return found;
    } catch (error) {
      await found.leave();
      throw error;
    }
  }

  get opened(): OpenedSession<NativeSession> {
    return this.result!;
  }

  async leave(): Promise<void> {
    if (--this.users === 0) {
      sharedSessions.delete(this.id);
      await this.result?.session.release();
    }
  }
}

async function openedFor(
  { model, options }: OnnxTask,
  runtime: NativeRuntime,
): Promise<OpenedSession<NativeSession>> {
  if (providersOf(options).some(({ name }) => name !== 'cpu')) {
    // The addon keeps the library loaded until the process has ended: providers' libraries call it then.
    await import(/* webpackIgnore: true */ 'onnxruntime-node');
  }
  const native = { offered: offeredBy(runtime), complete: ['cuda'], open: openNativeSession };
  return sessionOf(model, (content) => createSession(native, content, model.name, options));
}

/** A model's file, or its content. */
interface HashedFile {
  readonly file: string | Uint8Array;
  readonly sha256: string;
}

/**
 * Opens the files' sessions for threads that run them at the same time, by their addresses in the
 * option `sessions`, in the files' order.
 *
 * @returns undefined where native sessions cannot run them, or cannot open them: the threads' own
 *   sessions then say why
 */
export async function openForThreads(
  files: readonly HashedFile[],
  options: PartitionOptions,
): Promise<SharedByThreads | undefined> {
  if ((await obstacleFor([{ options }])) !== undefined) {
    return undefined;
  }
  const all: SharedSession[] = [];
  const close = async (): Promise<void> => {
    await Promise.all(all.map((shared) => shared.leave()));
  };
  try {
    for (const { file, sha256 } of files) {
      const open = async () => ({
        session: await openNativeSession(file, withShortSpin(options)),
        providers: { inUse: 'cpu', missing: [] },
      });
      all.push(await SharedSession.of(sha256, options, open));
    }
  } catch {
    await close();
    return undefined;
  }
  return { options: { sessions: all.map(({ opened }) => opened.session.address) }, close };
}

/** Memory that batches are gathered into, and that a run reads. */
interface RunMemory extends Pick<SpareMemory, 'memoryOf' | 'keep'> {
  release?(): void;
}

class NativePartition extends ModelPartition {
  /** The next batch is gathered while one runs. */
  override readonly prefetch = 1;
  readonly revokePending: () => void;
  readonly revoke: () => void;
  readonly terminate: () => void;
  /** False for a model that runs several times for a batch. */
  private readonly runsOnce: boolean;

  constructor(
    override readonly model: OnnxModel,
    private readonly turns: Turns,
    private readonly short: ShortRuns,
    private readonly memory: RunMemory,
  ) {
    super(model);
    ({ revokePending: this.revokePending, revoke: this.revoke, terminate: this.terminate } = turns);
    const { fixedBatch, states } = model.loaded.signature;
    this.runsOnce = fixedBatch === undefined && states.length === 0;
  }

  override async run(
    batch: Batch,
    info: BatchInfo,
    listener: BatchListener,
  ): Promise<PartitionResult> {
    const feeds = this.feedsOf(batch.gather(this.memory.memoryOf));
    try {
      return await this.runInTurn(feeds, batch.size, info, listener);
    } finally {
      this.memory.keep(spareOf(feeds));
    }
  }

  private async runInTurn(
    feeds: readonly Tensor[],
    size: number,
    info: BatchInfo,
    listener: BatchListener,
  ): Promise<PartitionResult> {
    const isShort = this.short.has(size, listener.callsIfFull);
    const turn = await this.turns.next(isShort, this.runsOnce && !isShort, listener);
    try {
      return await this.runFeeds(feeds, info, listener);
    } finally {
      this.short.learn(size, turn.end(), isShort);
      this.turns.end(turn);
    }
  }

  halt(): void {
    this.terminate();
  }
}

/** Runs of a partition: one at a time, with the next in a queue where a thread of ours takes them. */
class Turns {
  private readonly lane: RunLane;
  /** Options of runs that are not under way. */
  private readonly spare: NativeRunOptions[];
  /** The oldest is under way, perhaps for callers who no longer wait. */
  private running: Turn[] = [];
  /** Batches that wait for its end. */
  private waiting: { readonly begin: () => void; readonly revoke: (error: Error) => void }[] = [];
  /** For the run that begins now. */
  options: NativeRunOptions;

  constructor(runtime: NativeRuntime) {
    this.lane = new RunLane(runtime);
    this.options = new NativeRunOptions(runtime, this.lane);
    this.spare = [this.options, new NativeRunOptions(runtime, this.lane)];
  }

  /** @param canQueue true if the run may be handed over while another one goes on */
  async next(isShort: boolean, canQueue: boolean, listener: BatchListener): Promise<Turn> {
    const { hasCallers = false } = listener;
    if (!listener.callsIfFull) {
      this.lane.expectNone();
    }
    while (!this.hasRoom(canQueue)) {
      await this.change();
      if (canQueue) {
        this.lane.expectMore();
      }
    }
    this.options = this.spare.pop()!;
    this.options.renew(isShort);
    const turn = new Turn(this.options, listener, hasCallers);
    this.running.push(turn);
    this.running[0]!.begin();
    return turn;
  }

  end(turn: Turn): void {
    this.running = this.running.filter((other) => other !== turn);
    this.spare.push(turn.options);
    this.running[0]?.begin();
    this.waiting.shift()?.begin();
  }

  readonly revokePending = (): void =>
    this.takeBack(
      new NotStartedError(
        'The partition runs a batch that does not end, and this batch was not started',
      ),
    );

  readonly revoke = (): void =>
    this.takeBack(new RevokedError('The partition runs another batch, and another one is idle'));

  readonly terminate = (): void => {
    this.running[0]?.options.terminate();
  };

  /** Resolves when the runs have ended. */
  async release(): Promise<void> {
    while (this.running.length > 0) {
      await this.change().catch(() => {});
    }
    this.spare.forEach((options) => options.release());
  }

  private takeBack(error: Error): void {
    this.waiting.splice(0).forEach(({ revoke }) => revoke(error));
    this.lane.revoke(error);
  }

  private hasRoom(canQueue: boolean): boolean {
    const { length } = this.running;
    return length === 0 || (length === 1 && canQueue && this.lane.canQueue);
  }

  /** Resolves when a run has ended. */
  private change(): Promise<void> {
    return new Promise((begin, revoke) => this.waiting.push({ begin, revoke }));
  }
}

class Turn {
  private began: number | undefined;
  private watch: LongRun | undefined;

  /** @param hadCallers when it was handed over; they may have left since */
  constructor(
    readonly options: NativeRunOptions,
    private readonly listener: BatchListener,
    private readonly hadCallers: boolean,
  ) {}

  /** Called also for a run that has begun. */
  begin(): void {
    if (this.began === undefined) {
      this.began = performance.now();
      // A warm-up has no callers, and runs to its end.
      if (this.hadCallers && !this.options.isShort) {
        this.watch = new LongRun(this.listener, () => this.options.terminate());
      }
    }
  }

  /** @returns the run's milliseconds; infinitely many if it has not begun */
  end(): number {
    this.watch?.end();
    return performance.now() - (this.began ?? -Infinity);
  }
}

/** True if the time of a run depends on the number of rows alone. */
function hasSteadyTime({ loaded }: OnnxModel, { model }: OnnxTask): boolean {
  const { inputs, states } = loaded.signature;
  const all = [...inputs, ...states.map(({ input }) => input)];
  return (
    model.isSteady &&
    all.every(
      ({ type, shape, batchAxis }) =>
        type !== 'string' &&
        shape.every((size, axis) => axis === batchAxis || typeof size === 'number'),
    )
  );
}

/** Milliseconds: about the way to libuv's pool and back, in a process that waits for requests. */
const SHORT = 0.1;

/** Milliseconds, with the way to the pool and back, of a run that may be short. */
const PERHAPS = 0.3;

/** Milliseconds that this thread works for a call. */
const WORK = 0.004;

/** Runs in a row that may be short before we try one. The number doubles with each try. */
const TRIES = { first: 16, growth: 2 };

/** Slow runs in a row: a single one may be a pause of the machine. */
const SLOW_RUNS = 3;

interface RunsOfSize {
  isShort: boolean;
  perhaps: number;
  needed: number;
  slow: number;
  /** Milliseconds of the last one that took place here. */
  time: number;
}

/**
 * Finds out which runs take less time than the way to libuv's pool and back. These run in the
 * application's own thread, unless it has as much work with the next batch meanwhile.
 */
export class ShortRuns {
  /** By the rows' binary logarithm, rounded up. */
  private readonly sizes: RunsOfSize[] = [];

  /** @param isBounded false for a model that might run for long at any time */
  constructor(private readonly isBounded: boolean) {}

  /**
   * True also for a try.
   *
   * @param calls in a full batch: the next one has as many
   */
  has(rows: number, calls = 0): boolean {
    const runs = this.of(rows);
    if (calls * WORK > runs.time) {
      return false;
    }
    if (!runs.isShort && this.isBounded && runs.perhaps >= runs.needed) {
      runs.needed *= TRIES.growth;
      runs.perhaps = 0;
      return true;
    }
    return runs.isShort;
  }

  /**
   * @param time in milliseconds, with the way to the pool and back
   * @param wasHere true without that way
   */
  learn(rows: number, time: number, wasHere: boolean): void {
    const runs = this.of(rows);
    if (!wasHere) {
      runs.perhaps = time < PERHAPS ? runs.perhaps + 1 : 0;
      return;
    }
    runs.time = time;
    runs.slow = time > SHORT ? runs.slow + 1 : 0;
    runs.isShort = runs.isShort ? runs.slow < SLOW_RUNS : runs.slow === 0;
  }

  private of(rows: number): RunsOfSize {
    const size = Math.ceil(Math.log2(rows));
    return (this.sizes[size] ??= {
      isShort: false,
      perhaps: 0,
      needed: TRIES.first,
      slow: 0,
      time: Infinity,
    });
  }
}

/** Milliseconds. Most runs are shorter, and cost no more than a timer. */
const LONG = 10;

/** Ends a long run once none of its callers waits. */
class LongRun {
  private isOver = false;
  private readonly timer: NodeJS.Timeout;

  constructor(
    private readonly listener: BatchListener,
    private readonly terminate: () => void,
  ) {
    this.timer = setTimeout(() => this.watch(), LONG);
  }

  end(): void {
    this.isOver = true;
    clearTimeout(this.timer);
  }

  private watch(): void {
    if (this.listener.hasCallers) {
      this.listener.onLeft?.(() => this.isOver || this.terminate());
    } else {
      this.terminate();
    }
  }
}

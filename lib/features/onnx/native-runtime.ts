import { readdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { availableParallelism } from 'node:os';
import { dirname, join } from 'node:path';
import { Worker } from 'node:worker_threads';
import { messageOf } from '../../core/errors.js';
import { callNative, CALLS, IS_CLOSED, nativeCalls } from './native-calls.js';

/** Address of a library's object, or 0. */
export type Pointer = bigint;

/** Bytes. */
interface StackSizes {
  readonly sync_stack_size: number;
  readonly async_stack_size: number;
}

/** What we use of koffi, which need not be installed. */
interface Koffi {
  /** Sizes can be set until a library is loaded. */
  config(sizes?: StackSizes): StackSizes;
  load(path: string): { func(declaration: string): (...args: unknown[]) => object };
  array(type: string, length: number): unknown;
  /** Without a name, which koffi would refuse a second time. */
  proto(declaration: string): unknown;
  struct(name: string, members: Readonly<Record<string, string>>): unknown;
  decode(pointer: Pointer | object, type: unknown, length?: number): unknown;
  address(pointer: object): bigint;
  view(pointer: Pointer, bytes: number): ArrayBuffer;
}

/** Address of an error, 0 for success, or undefined from a function that returns nothing. */
type Status = number | bigint | undefined;

interface Native {
  (...args: unknown[]): Status;
  /** Runs on a thread of libuv's pool. */
  async(...args: [...unknown[], (error: Error | null, status: Status) => void]): void;
}

/**
 * Asks for this version of the C API: its table of functions only grows, so that these places are
 * the same in each later version. See onnxruntime_c_api.h, `struct OrtApi`.
 */
const API_VERSION = 18;

/** Each function's place in the table, and its parameters. */
const FUNCTIONS = {
  GetErrorMessage: [2, 'uintptr_t status'],
  CreateEnv: [3, 'int level, const char *name, void *env'],
  CreateSession: [7, 'void *env, void *path, void *options, void *out'],
  CreateSessionFromArray: [8, 'void *env, void *bytes, size_t length, void *options, void *out'],
  Run: [
    9,
    'void *session, void *options, void *names, void *inputs, size_t n, void *fetches, size_t m, void *outputs',
  ],
  CreateSessionOptions: [10, 'void *options'],
  SetOptimizedModelFilePath: [11, 'void *options, void *path'],
  SetSessionExecutionMode: [13, 'void *options, int mode'],
  EnableProfiling: [14, 'void *options, void *prefix'],
  EnableMemPattern: [16, 'void *options'],
  DisableMemPattern: [17, 'void *options'],
  EnableCpuMemArena: [18, 'void *options'],
  DisableCpuMemArena: [19, 'void *options'],
  SetSessionLogId: [20, 'void *options, const char *id'],
  SetSessionLogVerbosityLevel: [21, 'void *options, int level'],
  SetSessionLogSeverityLevel: [22, 'void *options, int level'],
  SetSessionGraphOptimizationLevel: [23, 'void *options, int level'],
  SetIntraOpNumThreads: [24, 'void *options, int threads'],
  SetInterOpNumThreads: [25, 'void *options, int threads'],
  SessionGetInputCount: [30, 'void *session, void *count'],
  SessionGetOutputCount: [31, 'void *session, void *count'],
  SessionGetInputTypeInfo: [33, 'void *session, size_t index, void *info'],
  SessionGetOutputTypeInfo: [34, 'void *session, size_t index, void *info'],
  SessionGetInputName: [36, 'void *session, size_t index, void *allocator, void *name'],
  SessionGetOutputName: [37, 'void *session, size_t index, void *allocator, void *name'],
  CreateRunOptions: [39, 'void *options'],
  RunOptionsSetRunLogSeverityLevel: [41, 'void *options, int level'],
  RunOptionsSetTerminate: [46, 'void *options'],
  RunOptionsUnsetTerminate: [47, 'void *options'],
  CreateTensorAsOrtValue: [48, 'void *allocator, void *shape, size_t rank, int type, void *value'],
  CreateTensorWithDataAsOrtValue: [
    49,
    'void *info, void *data, size_t bytes, void *shape, size_t rank, int type, void *value',
  ],
  GetTensorMutableData: [51, 'void *value, void *data'],
  FillStringTensor: [52, 'void *value, void *texts, size_t count'],
  GetStringTensorDataLength: [53, 'void *value, void *bytes'],
  GetStringTensorContent: [
    54,
    'void *value, void *content, size_t bytes, void *offsets, size_t count',
  ],
  CastTypeInfoToTensorInfo: [55, 'void *info, void *tensor'],
  GetTensorElementType: [60, 'void *tensor, void *type'],
  GetDimensionsCount: [61, 'void *tensor, void *count'],
  GetDimensions: [62, 'void *tensor, void *dimensions, size_t count'],
  GetSymbolicDimensions: [63, 'void *tensor, void *names, size_t count'],
  GetTensorTypeAndShape: [65, 'void *value, void *tensor'],
  CreateMemoryInfo: [68, 'const char *name, int allocator, int device, int memory, void *info'],
  CreateCpuMemoryInfo: [69, 'int allocator, int memory, void *info'],
  AllocatorAlloc: [75, 'void *allocator, size_t bytes, void *memory'],
  AllocatorFree: [76, 'void *allocator, void *memory'],
  GetAllocatorWithDefaultOptions: [78, 'void *allocator'],
  ReleaseStatus: [93, 'uintptr_t status'],
  ReleaseSession: [95, 'void *session'],
  ReleaseMemoryInfo: [94, 'void *info'],
  ReleaseValue: [96, 'void *value'],
  ReleaseRunOptions: [97, 'void *options'],
  ReleaseTypeInfo: [98, 'void *info'],
  ReleaseTensorTypeAndShapeInfo: [99, 'void *tensor'],
  ReleaseSessionOptions: [100, 'void *options'],
  AddFreeDimensionOverrideByName: [124, 'void *options, const char *name, int64_t value'],
  GetAvailableProviders: [125, 'void *names, void *count'],
  ReleaseAvailableProviders: [126, 'void *names, int count'],
  AddSessionConfigEntry: [130, 'void *options, const char *key, const char *value'],
  CreateAllocator: [131, 'void *session, void *info, void *allocator'],
  ReleaseAllocator: [132, 'void *allocator'],
  SessionOptionsAppendExecutionProvider_CUDA_V2: [204, 'void *options, void *cuda'],
  CreateCUDAProviderOptions: [205, 'void *options'],
  UpdateCUDAProviderOptions: [206, 'void *options, void *names, void *values, size_t count'],
  ReleaseCUDAProviderOptions: [208, 'void *options'],
} as const satisfies Readonly<Record<string, readonly [number, string]>>;

export type FunctionName = keyof typeof FUNCTIONS;

function resultOf(name: string): string {
  if (name === 'GetErrorMessage') {
    return 'const char *';
  }
  return /^Release(?!Available)/.test(name) ? 'void' : 'uintptr_t';
}

/** `OrtLoggingLevel`: warnings, as in onnxruntime-node. */
const WARNINGS = 2;

/**
 * The C API of the library that onnxruntime-node ships. Its functions return a status; `call` and
 * `callAsync` read and free it.
 */
export class NativeRuntime {
  readonly env: Pointer;
  readonly allocator: Pointer;
  /** Describes memory of the application's own. */
  readonly memory: Pointer;
  private readonly functions: Readonly<Record<FunctionName, Native>>;
  /** A function stores its result here. Not in V8's heap, where a small array would move. */
  private readonly stored = new BigUint64Array(new ArrayBuffer(8));
  /** Runs on libuv's pool. */
  private runs = 0;
  readonly threads: RunThreads;

  constructor(
    private readonly koffi: Koffi,
    /** koffi unloads a library that nothing refers to; its functions don't. */
    private readonly library: ReturnType<Koffi['load']>,
    path: string,
  ) {
    const base = koffi.decode(
      this.library.func('void *OrtGetApiBase()')(),
      koffi.array('void *', 2),
    ) as object[];
    const getApi = koffi.decode(base[0]!, koffi.proto('void *(uint32_t version)'));
    const api = (getApi as (version: number) => object | null)(API_VERSION);
    if (api === null) {
      throw new Error(`it is older than version 1.${API_VERSION} of its C API`);
    }
    const last = Math.max(...Object.values(FUNCTIONS).map(([place]) => place));
    const table = koffi.decode(api, koffi.array('void *', last + 1)) as object[];
    this.functions = Object.fromEntries(
      Object.entries(FUNCTIONS).map(([name, [place, parameters]]) => [
        name,
        koffi.decode(table[place]!, koffi.proto(`${resultOf(name)} (${parameters})`)),
      ]),
    ) as unknown as Record<FunctionName, Native>;
    this.env = this.made('CreateEnv', WARNINGS, 'nestjs-serving');
    this.allocator = this.made('GetAllocatorWithDefaultOptions');
    this.memory = this.made('CreateCpuMemoryInfo', 0, 0);
    const [place, parameters] = FUNCTIONS.Run;
    this.threads = new RunThreads({
      koffi: modulePath('koffi'),
      library: path,
      run: koffi.address(table[place]!),
      declaration: `uintptr_t (${parameters})`,
      stacks: STACKS,
    });
  }

  /** @throws an Error with the library's message */
  call(name: FunctionName, ...args: unknown[]): void {
    this.check(this.functions[name](...args));
  }

  /**
   * Runs on a thread of libuv's pool. Memory whose address is in an argument must stay until it has
   * ended.
   */
  callAsync(name: FunctionName, ...args: unknown[]): Promise<void> {
    return new Promise((resolve, reject) => {
      // koffi keeps the callback, and so the arguments, from garbage collection.
      const held = [...args];
      this.functions[name].async(...args, (error: Error | null, status: Status) => {
        held.length = 0;
        try {
          if (error) {
            throw error;
          }
          this.check(status);
          resolve();
        } catch (cause) {
          reject(cause);
        }
      });
    });
  }

  /** Calls `Run` on libuv's pool, if one of its threads is then left for files and DNS. */
  runOnPool(args: RunArguments): Promise<void> | undefined {
    if (this.runs >= POOL - 1) {
      return undefined;
    }
    this.runs++;
    return this.callAsync('Run', ...args).finally(() => this.runs--);
  }

  /** Returns the address that the function stores at its last parameter. */
  made(name: FunctionName, ...args: unknown[]): Pointer {
    const { stored } = this;
    // A smaller number than an address fills only its first bytes.
    stored[0] = 0n;
    this.call(name, ...args, stored);
    return stored[0];
  }

  /** Returns the number that the function stores at its last parameter. */
  number(name: FunctionName, ...args: unknown[]): number {
    return Number(this.made(name, ...args));
  }

  /** Names of the providers that the library was built with. */
  providers(): string[] {
    const list = pointers([0n]);
    const count = this.number('GetAvailableProviders', list);
    const names = this.koffi.decode(list[0]!, 'uint64_t', count) as Iterable<number | bigint>;
    const texts = Array.from(names, (name) => this.textAt(BigInt(name)));
    this.call('ReleaseAvailableProviders', list[0]!, count);
    return texts;
  }

  address(of: ArrayBufferView): Pointer {
    return this.koffi.address(of);
  }

  /** Reads a text that ends with a zero. */
  textAt(pointer: Pointer): string {
    return this.koffi.decode(pointer, 'char', -1) as string;
  }

  /** The library's memory; valid until its owner is released. */
  view(pointer: Pointer, bytes: number): ArrayBuffer {
    return this.koffi.view(pointer, bytes);
  }

  /** @throws an Error with the library's message */
  check(status: Status): void {
    if (status) {
      const message = this.functions.GetErrorMessage(status) as unknown as string;
      this.functions.ReleaseStatus(status);
      throw new Error(message);
    }
  }
}

/** Addresses outside V8's heap, where a small array would move. */
export function pointers(addresses: readonly Pointer[]): BigUint64Array {
  const list = new BigUint64Array(new ArrayBuffer(Math.max(8, 8 * addresses.length)));
  list.set(addresses);
  return list;
}

/** Ends with a zero. */
export function textOf(text: string): Uint8Array {
  const bytes = Buffer.allocUnsafeSlow(Buffer.byteLength(text) + 1);
  bytes.write(text);
  bytes[bytes.length - 1] = 0;
  return bytes;
}

/** Bytes: as much as a thread of the system has. */
const STACK = 8 * 2 ** 20;

const STACKS: StackSizes = { sync_stack_size: STACK, async_stack_size: STACK };

/**
 * koffi's calls have stacks of their own, by default too small for graphs within graphs.
 *
 * @throws an Error if the application has loaded a library, with smaller ones
 */
function enlargeStacks(koffi: Koffi): void {
  try {
    koffi.config(STACKS);
  } catch (cause) {
    const sizes = koffi.config();
    if (Math.min(sizes.sync_stack_size, sizes.async_stack_size) < STACK) {
      throw new Error(
        'the application uses koffi with smaller stacks; before it loads a library, call ' +
          `koffi.config({ sync_stack_size: ${STACK}, async_stack_size: ${STACK} })`,
        { cause },
      );
    }
  }
}

/** Threads of libuv's pool. Libuv reads the variable at its first use. */
const POOL = Number(process.env['UV_THREADPOOL_SIZE']) || 4;

/** Addresses, numbers, and lists of addresses. */
type RunArguments = readonly (Pointer | number | BigUint64Array)[];

/** Runs of a partition, in their order. */
export class RunLane {
  private thread: RunThread | undefined;

  constructor(private readonly runtime: NativeRuntime) {}

  /** True while a thread of ours runs, which begins the next run without the event loop. */
  get canQueue(): boolean {
    return this.own !== undefined && !this.own.isIdle && this.own.hasRoom;
  }

  /** Moves the next runs to a thread of ours, if a core is left. */
  expectMore(): void {
    this.thread = this.own ?? this.runtime.threads.take(this, MOST_THREADS);
  }

  expectNone(): void {
    if (!this.canQueue) {
      this.thread = undefined;
    }
  }

  /** @throws an Error with the library's message */
  async run(args: RunArguments): Promise<void> {
    if (!this.own?.hasRoom) {
      const onPool = this.runtime.runOnPool(args);
      if (onPool) {
        return onPool;
      }
      this.thread = this.runtime.threads.take(this);
    }
    const status = (await this.thread?.run(args, this.runtime)) ?? NOT_RUN;
    if (status === NOT_RUN) {
      return this.runtime.callAsync('Run', ...args);
    }
    this.runtime.check(status);
  }

  /** Takes back a run that has not begun, which then rejects with the error. */
  revoke(error: Error): void {
    this.own?.revoke(error);
  }

  /** Another lane may have taken an idle thread. */
  private get own(): RunThread | undefined {
    return this.thread?.lane === this ? this.thread : undefined;
  }
}

/** Milliseconds without a run after which a thread of ours ends. */
const IDLE = 30_000;

/** Threads that hand runs over: one for each core that the event loop leaves. */
const MOST_THREADS = Math.max(1, availableParallelism() - 1);

/** Of real time, also in a test that has installed another. */
const later = setTimeout;

/** Arguments of `Run`. */
const ARGUMENTS = 8;

/** A run that is under way, and the next one. */
const SLOTS = 2;

/** States of a slot. */
const [FREE, POSTED, RUNNING, REVOKED] = [0, 1, 2, 3];

interface RunSite {
  readonly koffi: string;
  readonly library: string;
  /** The address of the function `Run`. */
  readonly run: bigint;
  readonly declaration: string;
  readonly stacks: StackSizes;
}

/**
 * Calls `Run` in a thread for one slot after the other, with its arguments as addresses, and leaves
 * the address of the status. The script is a text, so that a bundle needs no file for it.
 */
const SCRIPT = `
  const { parentPort, workerData } = require('node:worker_threads');
  const { states, args, statuses, calls } = workerData;
  const callNative = (work) => {
    Atomics.add(calls, ${CALLS}, 1);
    try {
      return Atomics.load(calls, ${IS_CLOSED}) === 1 ? undefined : work();
    } finally {
      Atomics.sub(calls, ${CALLS}, 1);
      Atomics.notify(calls, ${CALLS});
    }
  };
  const run = callNative(() => {
    const koffi = require(workerData.koffi);
    koffi.config(workerData.stacks);
    // Garbage collection of the library would unload it.
    globalThis.library = koffi.load(workerData.library);
    return koffi.decode(workerData.run, koffi.proto(workerData.declaration));
  });
  for (let slot = 0; ; slot = (slot + 1) % ${SLOTS}) {
    Atomics.wait(states, slot, ${FREE});
    if (Atomics.compareExchange(states, slot, ${POSTED}, ${RUNNING}) === ${POSTED}) {
      const own = args.subarray(slot * ${ARGUMENTS}, (slot + 1) * ${ARGUMENTS});
      callNative(() => (statuses[slot] = BigInt(run(...own))));
    }
    Atomics.store(states, slot, ${FREE});
    Atomics.notify(states, slot);
    parentPort.postMessage(slot);
  }
`;

class RunThreads {
  private readonly all = new Set<RunThread>();
  /** The process may forbid threads, or koffi in them: then all runs take place on the pool. */
  private isBroken = false;

  constructor(private readonly site: RunSite) {
    // Before the exit waits.
    process.prependOnceListener('exit', () => this.all.forEach((thread) => thread.stop()));
  }

  /** Gives the lane an idle thread, or a new one while there are fewer than `most`. */
  take(lane: RunLane, most = Infinity): RunThread | undefined {
    for (const thread of this.all) {
      if (thread.isIdle) {
        thread.lane = lane;
        return thread;
      }
    }
    if (this.isBroken || this.all.size >= most) {
      return undefined;
    }
    try {
      const thread = new RunThread(this.site, lane, (hasFailed) => {
        this.all.delete(thread);
        this.isBroken ||= hasFailed;
      });
      this.all.add(thread);
      return thread;
    } catch {
      this.isBroken = true;
      return undefined;
    }
  }
}

/** Given for the status of a run whose thread could not start. */
const NOT_RUN = -1;

interface PostedRun {
  readonly terminate: () => void;
  readonly resolve: (status: Status) => void;
  readonly reject: (error: Error) => void;
  /** Keeps the arguments' memory. */
  readonly memory: unknown;
}

class RunThread {
  private readonly worker: Worker;
  private readonly states = new Int32Array(new SharedArrayBuffer(4 * SLOTS));
  private readonly args = new BigUint64Array(new SharedArrayBuffer(8 * ARGUMENTS * SLOTS));
  private readonly statuses = new BigUint64Array(new SharedArrayBuffer(8 * SLOTS));
  private readonly posted: (PostedRun | undefined)[] = [];
  private next = 0;
  private readonly timer: NodeJS.Timeout;

  constructor(
    site: RunSite,
    public lane: RunLane | undefined,
    private readonly onEnd: (hasFailed: boolean) => void,
  ) {
    const { states, args, statuses } = this;
    const workerData = { ...site, states, args, statuses, calls: nativeCalls };
    this.worker = new Worker(SCRIPT, { eval: true, workerData });
    this.worker.on('message', (slot: number) => this.end(slot));
    this.worker.on('error', () => this.close(true));
    this.timer = later(() => this.closeIfIdle(), IDLE).unref();
  }

  get isIdle(): boolean {
    return this.posted.every((run) => run === undefined);
  }

  /** False also while it has not yet seen that the run in the next slot was taken back. */
  get hasRoom(): boolean {
    return this.posted[this.next] === undefined;
  }

  /** Keeps the process alive meanwhile. */
  run(args: RunArguments, runtime: NativeRuntime): Promise<Status> {
    const slot = this.next;
    this.next = (slot + 1) % SLOTS;
    args.forEach((arg, index) => {
      const value = typeof arg === 'object' ? runtime.address(arg) : BigInt(arg);
      this.args[slot * ARGUMENTS + index] = value;
    });
    const terminate = (): void => runtime.call('RunOptionsSetTerminate', args[1]);
    this.worker.ref();
    return new Promise((resolve, reject) => {
      this.posted[slot] = { terminate, resolve, reject, memory: args };
      Atomics.store(this.states, slot, POSTED);
      Atomics.notify(this.states, slot);
    });
  }

  revoke(error: Error): void {
    this.posted.forEach((run, slot) => {
      if (Atomics.compareExchange(this.states, slot, POSTED, REVOKED) === POSTED) {
        run!.reject(error);
      }
    });
  }

  stop(): void {
    this.revoke(new Error('The process ends'));
    this.posted.forEach((run) => run?.terminate());
  }

  private end(slot: number): void {
    const { resolve } = this.posted[slot]!;
    this.posted[slot] = undefined;
    if (this.isIdle) {
      this.worker.unref();
      this.timer.refresh();
    }
    resolve(this.statuses[slot]);
  }

  private closeIfIdle(): void {
    if (this.isIdle) {
      this.close(false);
      void this.worker.terminate();
    }
  }

  private close(hasFailed: boolean): void {
    this.lane = undefined;
    this.onEnd(hasFailed);
    this.posted.forEach((run) => run?.resolve(NOT_RUN));
  }
}

function modulePath(name: string): string {
  return createRequire(import.meta.url).resolve(name);
}

let runtime: Promise<NativeRuntime> | undefined;

/**
 * The process's only native runtime.
 *
 * @throws an Error that says what is missing
 */
export function nativeRuntime(): Promise<NativeRuntime> {
  return (runtime ??= callNative(loadRuntime));
}

async function loadRuntime(): Promise<NativeRuntime> {
  let koffi: Koffi;
  try {
    // Not part of application bundles.
    const module: unknown = await import(/* webpackIgnore: true */ 'koffi');
    koffi = (module as { readonly default: Koffi }).default;
  } catch (cause) {
    const isMissing = String((cause as { code?: unknown }).code).endsWith('MODULE_NOT_FOUND');
    throw new Error(
      isMissing
        ? 'the package koffi is not installed (npm install koffi)'
        : `koffi cannot be loaded: ${messageOf(cause)}`,
      { cause },
    );
  }
  enlargeStacks(koffi);
  const path = libraryPath();
  try {
    return new NativeRuntime(koffi, koffi.load(path), path);
  } catch (cause) {
    throw new Error(`the library ${path} cannot be used: ${messageOf(cause)}`, { cause });
  }
}

function libraryPath(): string {
  try {
    const root = dirname(modulePath('onnxruntime-node/package.json'));
    const bin = join(root, 'bin');
    const [version] = readdirSync(bin).filter((each) => each.startsWith('napi-'));
    const folder = join(bin, version!, process.platform, process.arch);
    const file = readdirSync(folder).find((each) =>
      /^(?:lib)?onnxruntime(?:\.so|\.dll|[.\d]*\.dylib)/.test(each),
    );
    return join(folder, file!);
  } catch (cause) {
    throw new Error(`onnxruntime-node has no library for ${process.platform} ${process.arch}`, {
      cause,
    });
  }
}

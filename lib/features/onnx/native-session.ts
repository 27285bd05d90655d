import type { InferenceSession } from 'onnxruntime-common';
import { blankOf, product, Tensor, type TypedData } from '../../core/batch/tensor.js';
import { messageOf } from '../../core/errors.js';
import { formatValue } from '../../core/format.js';
import { appendProvider } from './native-providers.js';
import {
  type FunctionName,
  type NativeRuntime,
  nativeRuntime,
  type Pointer,
  pointers,
  type RunLane,
  textOf,
} from './native-runtime.js';
import { providersOf } from './onnx-session.js';

type Metadata = InferenceSession.ValueMetadata;

type Port = Extract<Metadata, { readonly isTensor: true }>;

/** `ONNXTensorElementDataType`, by its number less one. */
const TYPES = [
  'float32',
  'uint8',
  'int8',
  'uint16',
  'int16',
  'int32',
  'int64',
  'string',
  'bool',
  'float16',
  'float64',
  'uint32',
  'uint64',
  ...Array<undefined>(7),
  'uint4',
  'int4',
] as const satisfies readonly (Tensor.Type | undefined)[];

const NUMBERS = new Map<Tensor.Type | undefined, number>(
  TYPES.map((type, index) => [type, index + 1]),
);

/** Hooks may ask for any of a model's outputs. */
const MOST_LISTS = 64;

/**
 * A session of the C API. Any number of runs may be under way at the same time, each on a thread of
 * libuv's pool.
 */
export class NativeSession {
  readonly inputMetadata: readonly Metadata[];
  readonly outputMetadata: readonly Metadata[];
  private readonly names: ReadonlyMap<string, Uint8Array>;
  /** Addresses of the names that runs pass, by all of them. */
  private readonly lists = new Map<string, BigUint64Array>();
  private readonly shapes: ReadonlyMap<string, Port>;
  private readonly inputNames: ReadonlySet<string>;
  /** False once an output had another shape than the file says. */
  private areShapesTrue = true;
  /** Runs that log no failure, since it may be that of a shape. */
  private trials = TRIALS;
  private runs = 0;
  /** Called when the last run has ended. */
  private idle: (() => void) | undefined;

  constructor(
    private readonly runtime: NativeRuntime,
    readonly address: Pointer,
  ) {
    this.inputMetadata = metadataOf(runtime, address, 'Input');
    this.outputMetadata = metadataOf(runtime, address, 'Output');
    this.inputNames = new Set(this.inputMetadata.map(({ name }) => name));
    const all = [...this.inputMetadata, ...this.outputMetadata];
    this.names = new Map(all.map(({ name }) => [name, textOf(name)]));
    this.shapes = new Map(all.flatMap((port) => (port.isTensor ? [[port.name, port]] : [])));
  }

  /**
   * The feeds' memory must not change or move until the run has ended.
   *
   * @param given memory of outputs, which may be that of inputs; the others get their own
   * @throws an Error with the library's message
   */
  async run(
    feeds: Readonly<Record<string, Tensor>>,
    fetches: readonly string[],
    options: NativeRunOptions,
    given: Readonly<Record<string, Tensor | null>> = {},
  ): Promise<Record<string, Tensor>> {
    const inputs = Object.entries(feeds);
    this.runs++;
    try {
      if (this.areShapesTrue) {
        options.silence(this.trials-- > 0);
        try {
          const outputs = this.outputsFor(inputs, fetches, given);
          return await this.runInto(outputs, inputs, fetches, options);
        } catch (error) {
          if (!messageOf(error).includes('OrtValue')) {
            throw error;
          }
          this.areShapesTrue = false;
        } finally {
          options.silence(false);
        }
      }
      const known = fetches.map((name) => given[name] ?? undefined);
      return await this.runInto(known, inputs, fetches, options);
    } finally {
      if (--this.runs === 0) {
        this.idle?.();
      }
    }
  }

  /** The library writes into the tensors that are given, and allocates the others. */
  private async runInto(
    outputs: readonly (Tensor | undefined)[],
    inputs: readonly (readonly [string, Tensor])[],
    fetches: readonly string[],
    options: NativeRunOptions,
  ): Promise<Record<string, Tensor>> {
    const { runtime } = this;
    const values = new Values(runtime);
    try {
      const given = pointers(inputs.map(([, tensor]) => values.add(tensor, ownMemory)));
      const made = pointers(outputs.map((tensor) => (tensor ? values.add(tensor) : 0n)));
      const run = [
        this.address,
        options.pointer,
        this.namesOf(inputs.map(([name]) => name)),
        given,
        inputs.length,
        this.namesOf(fetches),
        fetches.length,
        made,
      ];
      if (options.isShort) {
        runtime.call('Run', ...run);
      } else {
        await options.lane!.run(run);
      }
      outputs.forEach((tensor, index) => tensor ?? values.all.push(made[index]!));
      const results = outputs.map((tensor, index) => tensor ?? values.read(made[index]!));
      return Object.fromEntries(fetches.map((name, index) => [name, results[index]!]));
    } finally {
      values.release();
    }
  }

  /** Tensors of the shapes that the file says, where the inputs tell the size of each axis. */
  private outputsFor(
    inputs: readonly (readonly [string, Tensor])[],
    fetches: readonly string[],
    given: Readonly<Record<string, Tensor | null>>,
  ): (Tensor | undefined)[] {
    const sizes = new Map<number | string, number>();
    for (const [name, { dims }] of inputs) {
      this.shapes.get(name)?.shape.forEach((axis, index) => sizes.set(axis, dims[index]!));
    }
    return fetches.map((name) => {
      const own = given[name];
      if (own) {
        return own;
      }
      const { type, shape } = this.shapes.get(name) ?? {};
      // The library passes an input on, and writes nothing into memory that is given for it.
      if (!type || !shape || type === 'string' || this.inputNames.has(name)) {
        return undefined;
      }
      const dims = shape.map((axis) => (typeof axis === 'number' ? axis : sizes.get(axis)));
      const isKnown = dims.every((size) => size !== undefined && size > 0);
      return isKnown && !shape.includes('') ? blankOf(type, dims as number[]) : undefined;
    });
  }

  /** Frees the session once its runs have ended. Called once. */
  async release(): Promise<void> {
    if (this.runs > 0) {
      await new Promise<void>((resolve) => (this.idle = resolve));
    }
    this.runtime.call('ReleaseSession', this.address);
  }

  private namesOf(names: readonly string[]): BigUint64Array {
    const all = names.join('\0');
    let list = this.lists.get(all);
    if (!list) {
      list = pointers(names.map((name) => this.runtime.address(this.names.get(name)!)));
      if (this.lists.size < MOST_LISTS) {
        this.lists.set(all, list);
      }
    }
    return list;
  }
}

/** A graph's branches may differ in their shapes. */
const TRIALS = 8;

/** Severities of what a run logs. */
const [OF_SESSION, FATAL] = [-1, 4];

/** Ends a run that is under way. */
export class NativeRunOptions {
  readonly pointer: Pointer;
  /** True if the next run is to take place in this thread. */
  isShort = false;
  private isTerminated = false;
  private isSilent = false;

  /**
   * @param lane for runs that are not short
   * @param severity least severity of what the run logs, from 0 to 4
   */
  constructor(
    private readonly runtime: NativeRuntime,
    readonly lane?: RunLane,
    private readonly severity = OF_SESSION,
  ) {
    this.pointer = runtime.made('CreateRunOptions');
    this.log(severity);
  }

  /** Lets a run that may fail log nothing. */
  silence(isSilent: boolean): void {
    if (isSilent !== this.isSilent) {
      this.isSilent = isSilent;
      this.log(isSilent ? FATAL : this.severity);
    }
  }

  private log(severity: number): void {
    this.runtime.call('RunOptionsSetRunLogSeverityLevel', this.pointer, severity);
  }

  terminate(): void {
    this.isTerminated = true;
    this.runtime.call('RunOptionsSetTerminate', this.pointer);
  }

  renew(isShort: boolean): void {
    this.isShort = isShort;
    if (this.isTerminated) {
      this.isTerminated = false;
      this.runtime.call('RunOptionsUnsetTerminate', this.pointer);
    }
  }

  release(): void {
    this.runtime.call('ReleaseRunOptions', this.pointer);
  }
}

/** Part of onnxruntime-node's sessions that threads use. */
export interface SessionOfThread {
  readonly inputNames: readonly string[];
  readonly outputNames: readonly string[];
  readonly inputMetadata: readonly Metadata[];
  readonly outputMetadata: readonly Metadata[];
  /** @param fetches names of outputs, or the memory of each, null for memory of its own */
  run(
    feeds: Readonly<Record<string, Tensor>>,
    fetches: readonly string[] | Readonly<Record<string, Tensor | null>>,
    options?: InferenceSession.RunOptions,
  ): Promise<Record<string, Tensor>>;
}

/** A session of the application in another thread, where each run holds the thread. */
class ThreadSession implements SessionOfThread {
  readonly inputMetadata: readonly Metadata[];
  readonly outputMetadata: readonly Metadata[];
  readonly inputNames: readonly string[];
  readonly outputNames: readonly string[];
  private readonly options = new Map<number | undefined, NativeRunOptions>();

  constructor(
    private readonly runtime: NativeRuntime,
    private readonly session: NativeSession,
  ) {
    this.inputMetadata = session.inputMetadata;
    this.outputMetadata = session.outputMetadata;
    this.inputNames = this.inputMetadata.map(({ name }) => name);
    this.outputNames = this.outputMetadata.map(({ name }) => name);
  }

  run(
    feeds: Readonly<Record<string, Tensor>>,
    fetches: readonly string[] | Readonly<Record<string, Tensor | null>>,
    { logSeverityLevel }: Pick<InferenceSession.RunOptions, 'logSeverityLevel'> = {},
  ): Promise<Record<string, Tensor>> {
    const options = this.optionsFor(logSeverityLevel);
    return Array.isArray(fetches)
      ? this.session.run(feeds, fetches as readonly string[], options)
      : this.session.run(feeds, Object.keys(fetches), options, fetches as Record<string, Tensor>);
  }

  private optionsFor(severity: number | undefined): NativeRunOptions {
    let found = this.options.get(severity);
    if (!found) {
      found = new NativeRunOptions(this.runtime, undefined, severity);
      found.renew(true);
      this.options.set(severity, found);
    }
    return found;
  }
}

/** The session at the address, which the application closes after this thread has ended. */
export async function sessionAt(address: bigint): Promise<SessionOfThread> {
  const runtime = await nativeRuntime();
  return new ThreadSession(runtime, new NativeSession(runtime, address));
}

/** The values of one run. Native code refers to the memory of tensors that were added. */
class Values {
  readonly all: Pointer[] = [];
  /** Keeps the memory until the run has ended. */
  private readonly kept: unknown[] = [];

  constructor(private readonly runtime: NativeRuntime) {}

  add(tensor: Tensor, memoryOf = bytesOf): Pointer {
    const value = this.valueOf(tensor, memoryOf);
    this.all.push(value);
    return value;
  }

  private valueOf({ type, dims, data }: Tensor, memoryOf: typeof bytesOf): Pointer {
    const { runtime } = this;
    const shape = shapeOf(dims);
    const number = NUMBERS.get(type);
    if (number === undefined) {
      throw new Error(`tensors of ${type} cannot be passed to the library`);
    }
    if (!ArrayBuffer.isView(data)) {
      const value = runtime.made(
        'CreateTensorAsOrtValue',
        runtime.allocator,
        shape,
        dims.length,
        number,
      );
      // An address for each would take ten times as long. The texts hold no zeros.
      const texts = textOf(data.join('\0'));
      this.kept.push(texts);
      let at = runtime.address(texts);
      const addresses = pointers(
        data.map((text) => {
          const own = at;
          at += BigInt(Buffer.byteLength(text) + 1);
          return own;
        }),
      );
      runtime.call('FillStringTensor', value, addresses, data.length);
      return value;
    }
    const memory = memoryOf(data);
    this.kept.push(memory);
    return runtime.made(
      'CreateTensorWithDataAsOrtValue',
      runtime.memory,
      memory,
      data.byteLength,
      shape,
      dims.length,
      number,
    );
  }

  /** Copies an output. */
  read(output: Pointer): Tensor {
    const { runtime } = this;
    const info = runtime.made('GetTensorTypeAndShape', output);
    try {
      const { type, dims } = tensorInfo(runtime, info);
      if (type === 'string') {
        return new Tensor(type, textsIn(runtime, output, product(dims, 0, dims.length)), dims);
      }
      const tensor = blankOf(type, dims);
      const bytes = bytesOf(tensor.data as TypedData);
      if (bytes.length > 0) {
        const data = runtime.made('GetTensorMutableData', output);
        bytes.set(new Uint8Array(runtime.view(data, bytes.length)));
      }
      return tensor;
    } finally {
      runtime.call('ReleaseTensorTypeAndShapeInfo', info);
    }
  }

  release(): void {
    this.all.forEach((value) => this.runtime.call('ReleaseValue', value));
    this.all.length = 0;
    this.kept.length = 0;
  }
}

function textsIn(runtime: NativeRuntime, value: Pointer, size: number): string[] {
  const bytes = runtime.number('GetStringTensorDataLength', value);
  const content = Buffer.alloc(Math.max(1, bytes));
  const offsets = new BigUint64Array(new ArrayBuffer(8 * (size + 1)));
  runtime.call('GetStringTensorContent', value, content, bytes, offsets, size);
  offsets[size] = BigInt(bytes);
  return Array.from({ length: size }, (_, index) =>
    content.toString('utf8', Number(offsets[index]), Number(offsets[index + 1])),
  );
}

function metadataOf(
  runtime: NativeRuntime,
  session: Pointer,
  side: 'Input' | 'Output',
): readonly Metadata[] {
  const count = runtime.number(`SessionGet${side}Count`, session);
  return Array.from({ length: count }, (_, index) => {
    const pointer = runtime.made(`SessionGet${side}Name`, session, index, runtime.allocator);
    const name = runtime.textAt(pointer);
    runtime.call('AllocatorFree', runtime.allocator, pointer);
    const info = runtime.made(`SessionGet${side}TypeInfo`, session, index);
    try {
      const tensor = runtime.made('CastTypeInfoToTensorInfo', info);
      return tensor === 0n
        ? { name, isTensor: false as const }
        : { name, isTensor: true as const, ...shapeInfo(runtime, tensor) };
    } finally {
      runtime.call('ReleaseTypeInfo', info);
    }
  });
}

function shapeInfo(
  runtime: NativeRuntime,
  tensor: Pointer,
): { type: Tensor.Type; shape: (number | string)[] } {
  const { type, dims } = tensorInfo(runtime, tensor);
  const names = pointers(dims.map(() => 0n));
  runtime.call('GetSymbolicDimensions', tensor, names, dims.length);
  const shape = dims.map((dim, axis) => (dim >= 0 ? dim : runtime.textAt(names[axis]!)));
  return { type, shape };
}

function tensorInfo(runtime: NativeRuntime, info: Pointer): { type: Tensor.Type; dims: number[] } {
  const number = runtime.number('GetTensorElementType', info);
  const type = TYPES[number - 1];
  if (type === undefined) {
    throw new Error(`Unsupported data type: ${number}`);
  }
  const count = runtime.number('GetDimensionsCount', info);
  const dims = new BigInt64Array(new ArrayBuffer(Math.max(8, 8 * count)));
  runtime.call('GetDimensions', info, dims, count);
  return { type, dims: Array.from(dims.slice(0, count), Number) };
}

/** Most axes of most tensors. */
const AXES = 8;

/** For one call of the library at a time, which copies it. */
const anyShape = new BigInt64Array(new ArrayBuffer(8 * AXES));

function shapeOf(dims: readonly number[]): BigInt64Array {
  const list = dims.length > AXES ? new BigInt64Array(new ArrayBuffer(8 * dims.length)) : anyShape;
  for (let axis = 0; axis < dims.length; axis++) {
    list[axis] = BigInt(dims[axis]!);
  }
  return list;
}

/** Typed arrays up to this size in bytes may lie in V8's heap. */
const ON_HEAP = 64;

function bytesOf({ buffer, byteOffset, byteLength }: TypedData): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength);
}

/** Copies what may lie in V8's heap. */
function ownMemory(data: TypedData): Uint8Array {
  const bytes = bytesOf(data);
  if (data.byteLength > ON_HEAP) {
    return bytes;
  }
  const own = new Uint8Array(new ArrayBuffer(Math.max(1, data.byteLength)));
  own.set(bytes);
  return own;
}

/** @throws an Error with the library's message */
export async function openNativeSession(
  model: string | Uint8Array,
  options: SessionOptions = {},
): Promise<NativeSession> {
  const runtime = await nativeRuntime();
  const native = runtime.made('CreateSessionOptions');
  const out = pointers([0n]);
  try {
    setOptions(runtime, native, options);
    providersOf(options).forEach((provider) => appendProvider(runtime, native, provider));
    if (typeof model === 'string') {
      await runtime.callAsync('CreateSession', runtime.env, pathOf(model), native, out);
    } else {
      await runtime.callAsync(
        'CreateSessionFromArray',
        runtime.env,
        model,
        model.byteLength,
        native,
        out,
      );
    }
  } finally {
    runtime.call('ReleaseSessionOptions', native);
  }
  const session = out[0]!;
  try {
    return new NativeSession(runtime, session);
  } catch (error) {
    runtime.call('ReleaseSession', session);
    throw error;
  }
}

/** Paths are UTF-16 on Windows. */
function pathOf(path: string): Uint8Array {
  return process.platform === 'win32' ? Buffer.from(`${path}\0`, 'utf16le') : textOf(path);
}

const LEVELS = { disabled: 0, basic: 1, extended: 2, layout: 3, all: 99 } as const;

type SessionOptions = InferenceSession.SessionOptions;

/** Calls a function of the library with the options. */
type SetOption = (name: FunctionName, ...args: readonly unknown[]) => void;

/** How the library gets each option of a session. */
const OPTIONS: {
  readonly [Name in keyof SessionOptions]?: (
    set: SetOption,
    value: Required<SessionOptions>[Name],
    given: SessionOptions,
  ) => void;
} = {
  // Added after the others.
  executionProviders: () => {},
  intraOpNumThreads: (set, threads) => set('SetIntraOpNumThreads', threads),
  interOpNumThreads: (set, threads) => set('SetInterOpNumThreads', threads),
  freeDimensionOverrides: (set, sizes) => {
    for (const [name, size] of Object.entries(sizes)) {
      set('AddFreeDimensionOverrideByName', name, size);
    }
  },
  graphOptimizationLevel: (set, level) => set('SetSessionGraphOptimizationLevel', LEVELS[level]),
  enableCpuMemArena: (set, isOn) => set(isOn ? 'EnableCpuMemArena' : 'DisableCpuMemArena'),
  enableMemPattern: (set, isOn) => set(isOn ? 'EnableMemPattern' : 'DisableMemPattern'),
  executionMode: (set, mode) => set('SetSessionExecutionMode', mode === 'parallel' ? 1 : 0),
  optimizedModelFilePath: (set, path) => set('SetOptimizedModelFilePath', pathOf(path)),
  enableProfiling: (set, isOn, { profileFilePrefix = 'onnxruntime_profile_' }) => {
    if (isOn) {
      set('EnableProfiling', pathOf(profileFilePrefix));
    }
  },
  profileFilePrefix: () => {},
  logId: (set, id) => set('SetSessionLogId', id),
  logSeverityLevel: (set, level) => set('SetSessionLogSeverityLevel', level),
  logVerbosityLevel: (set, level) => set('SetSessionLogVerbosityLevel', level),
  extra: (set, entries) => {
    for (const [key, value] of entriesOf(entries)) {
      set('AddSessionConfigEntry', key, value);
    }
  },
};

/** An option that native sessions don't have. */
export function foreignOption(options: object): string | undefined {
  return givenIn(options).find((name) => !(name in OPTIONS));
}

function givenIn(options: object): string[] {
  return Object.entries(options).flatMap(([name, value]) => (value === undefined ? [] : [name]));
}

/** @throws an Error that names the option */
function setOptions(runtime: NativeRuntime, options: Pointer, given: SessionOptions): void {
  const set: SetOption = (name, ...args) => runtime.call(name, options, ...args);
  for (const name of givenIn(given) as (keyof SessionOptions)[]) {
    const value = given[name];
    try {
      OPTIONS[name]?.(set, value as never, given);
    } catch (cause) {
      const reason = `the option ${name} is ${formatValue(value)}: ${messageOf(cause)}`;
      throw new Error(reason, { cause });
    }
  }
}

/** `{ session: { a: 1 } }` is `session.a`. */
function* entriesOf(extra: object, prefix = ''): Generator<readonly [string, string]> {
  for (const [name, value] of Object.entries(extra)) {
    if (typeof value === 'object' && value !== null) {
      yield* entriesOf(value as object, `${prefix}${name}.`);
    } else {
      yield [prefix + name, String(value)];
    }
  }
}

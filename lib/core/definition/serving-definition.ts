import type { InferenceSession } from 'onnxruntime-common';
import type { Batch } from '../batch/batch.js';
import type { AnyRun, InputOf, Mistake, ReplyOf, TypedFactory } from './inferred-types.js';
import type { DeclaredAxes, ServingSignature } from '../partitions/model/model-signature.js';
import type { Isolation } from '../partitions/worker/worker.partition.js';
import type { Observable } from 'rxjs';
import type { CallMetadata, StreamedOutput, StreamEvent } from './reply.js';
import type { OutputAxes, RowTemplate } from './row-template.js';
import type { Fetching, RemoteModel, RemoteFiles } from '../partitions/model/remote-models.js';

import type { BatchSize } from './batch-size.js';
import type { BatchFunction, OtherModel, PartitionOptions } from '../partitions/batch-function.js';
import type { ExternalModel } from '../partitions/engine.js';

/** The result of `preprocess`. */
export interface PreprocessResult<Info = unknown> {
  /**
   * A Batch, or tensors whose batch axis counts rows, or one plain value, which is one row; or a
   * lazy sequence of these: an async iterable, an Observable, a generator, or an array of batches.
   */
  readonly batch: unknown;
  /** Passed to `postprocess` of the same call, and of calls that share its rows. */
  readonly info?: Info;
}

/** The second argument of `preprocess`. */
export interface PreprocessContext<Facts = unknown> {
  /** The tensors of the version that runs the call: of a model always known. */
  readonly signature: ServingSignature | undefined;
  /** What was fetched with the model of the version that runs the call; else undefined. */
  readonly facts: Facts;
  /**
   * Aborts if the call ends before its rows are prepared: its caller has left, its `timeout` has
   * passed, or the serving shuts down. End the work then, since nobody reads its result.
   */
  readonly signal: AbortSignal;
}

/** The second argument of `postprocess`. */
export type PostprocessContext<Info = unknown, Facts = unknown> = CallMetadata & {
  /** The `info` that `preprocess` of the call returned. */
  readonly info: Info;
  /** The facts that `preprocess` gets. */
  readonly facts: Facts;
};

/** The second argument of `postprocessStream`. */
export interface StreamContext<Info = unknown, Facts = unknown> {
  /** The `info` that `preprocess` of the call returned. */
  readonly info: Info;
  /** The facts that `preprocess` gets. */
  readonly facts: Facts;
}

/** How other nodes of a cluster call a serving. */
export interface ServingDistributionOptions<Input = unknown, Output = unknown> {
  /**
   * Whether other nodes may call the serving.
   *
   * @default true
   */
  readonly enabled?: boolean;
  /**
   * The node's share of the cluster's calls, in proportion to other nodes, is this times its
   * working partitions. 0 for no calls.
   *
   * @default 1
   */
  readonly weight?: number;
  /** Changes the input of a call to another node, on the caller's side, before it is sent. */
  preprocess?(input: Input): unknown;
  /**
   * Changes the output for a caller on another node, after `postprocess` of the serving and before
   * it is sent; of a stream, each output.
   */
  postprocess?(output: Output): unknown;
}

/** A key with options. The serving's own option holds where one is omitted. */
export interface KeyServingOptions {
  /** The name of the key. */
  readonly key: string;
  /**
   * The largest number of rows of the key in a batch.
   *
   * @default the serving's
   */
  readonly batchSize?: number;
  /**
   * Milliseconds that a batch of the key waits for more rows, from its first row on.
   *
   * @default the serving's
   */
  readonly batchTimeout?: number;
}

/** The timeouts of calls, in milliseconds. */
export interface TimeoutOptions {
  /**
   * Timeout of calls that give none, except streams.
   *
   * @default no limit
   */
  readonly default?: number;
  /**
   * Upper limit: longer timeouts, and calls without one, get this. It also limits streams, from the
   * call to their end.
   *
   * @default no limit
   */
  readonly most?: number;
}

/** The versions of a serving; `reload` loads others. */
export interface RolloutOptions {
  /**
   * The label of the version that is defined here; of an external model, the version that the other
   * program is asked for.
   *
   * @default '1', and an external model's own choice
   */
  readonly version?: string;
}

/** The queue's limits, and its rows' order. */
export interface QueueOptions<Input = unknown> {
  /**
   * The largest number of rows in the queue; beyond it a call fails immediately with an
   * OverloadedError.
   *
   * @default 10000
   */
  readonly maxRows?: number;
  /**
   * The largest total `cost` of the rows in the queue; beyond it a call fails immediately with an
   * OverloadedError.
   *
   * @default no limit
   */
  readonly maxCost?: number;
  /**
   * The cost of a call's rows, counted against `maxCost`: a number of 0 or more.
   *
   * @default its tensors' bytes
   */
  cost?(batch: Batch): number;
  /**
   * The largest number of rows of one call; beyond it the call fails immediately with a
   * RequestTooLargeError. For a stream or a lazy sequence it limits each of its batches. More than
   * `maxRows` would never fit into the queue.
   *
   * @default `maxRows`
   */
  readonly maxRowsPerCall?: number;
  /**
   * The largest size in bytes of the tensors of one call, strings as UTF-8; beyond it the call
   * fails with a RequestTooLargeError. Plain values are not counted.
   *
   * @default no limit
   */
  readonly maxBytesPerCall?: number;
  /**
   * Milliseconds of waiting that outweigh one level of `priority`, so that no row starves.
   *
   * @default 1000
   */
  readonly priorityAgeing?: number;
  /** The tenant of a call without its own `tenant`; `undefined` for none. */
  tenant?(input: Input): string | undefined;
  /**
   * The weights of tenants, by name: while both have queued rows, a tenant of weight 2 gets twice
   * as many rows run as one of weight 1. A tenant without an entry has weight 1.
   *
   * @default {}
   */
  readonly tenantWeights?: Readonly<Record<string, number>>;
  /**
   * Whether rows of different origins (HTTP, RPC, WebSocket, GraphQL, in-process) never share a
   * batch. The batch function then gets the origin.
   *
   * @default false
   */
  readonly separateOrigins?: boolean;
  /**
   * `preserve`: the replies of `batchedRun` leave in the calls' order, among rows that may
   * share a batch. A reply waits for those before it until they are answered; a call that fails, or
   * ends early, does so immediately and holds up no other.
   *
   * @default replies leave as soon as they are made
   */
  readonly order?: 'preserve';
}

/** How batches that fail or hang run again, or end. */
export interface RecoveryOptions {
  /**
   * Whether a batch may run twice without harm: then it runs again when its partition was lost, and
   * when part of it failed.
   *
   * @default true for models, and otherwise false
   */
  readonly idempotent?: boolean;
  /**
   * Whether a failed batch runs again in halves, until only the failing row fails; needs
   * `idempotent`.
   *
   * @default the value of `idempotent`
   */
  readonly isolateFailures?: boolean;
  /**
   * How often a batch runs again whose partition was lost while it ran; needs `idempotent`.
   *
   * @default 2
   */
  readonly retries?: number;
  /**
   * Limit in milliseconds of a batch's run, including all its steps, or of a sequence of each
   * step; beyond it its calls fail with a RunTimeoutError. A partition that is a process is then
   * killed and restarted; any other takes no batch until that one has returned.
   *
   * @default no limit
   */
  readonly runTimeout?: number;
  /**
   * Only for threads, processes and external models, like the options below: the longest pause in
   * milliseconds before the first restart; doubles with each failure in a row,
   * up to 30 s. The pause is random between 0 and that, so that partitions that failed together do
   * not restart together.
   *
   * @default 100
   */
  readonly restartDelay?: number;
  /**
   * The number of restarts without a successful batch. After that the partition is lost, and is
   * tried again every 30 s; calls fail immediately when all partitions are lost. With the default,
   * starts that fail immediately take at most 3 s.
   *
   * @default 5
   */
  readonly maxRestarts?: number;
  /**
   * Milliseconds until a restarted partition must be loaded and warm. A process that is not is
   * killed, and counts as failed; a thread cannot be killed, and is reported as hung until it is. A
   * version that `reload` loads has the same time. The default leaves time to compile a model once
   * more.
   *
   * @default 600000
   */
  readonly restartTimeout?: number;
}

/** What happens to calls when the application shuts down. */
export interface ShutdownOptions {
  /**
   * Whether queued rows run, or fail with a ServingClosedError.
   *
   * @default true
   */
  readonly drain?: boolean;
  /**
   * Milliseconds from the beginning of shutdown after which every call that is left fails with a
   * ServingClosedError.
   *
   * @default 30000
   */
  readonly timeout?: number;
}

/** The options of every serving, without those that also get a stream's outputs. */
export interface OptionsOfCalls<
  Input = unknown,
  Output = unknown,
  Result = unknown,
  Info = unknown,
  Facts = unknown,
> {
  /** Unique in the application. */
  readonly name: string;
  /**
   * How large a batch gets. A number: its most rows; beyond 32 the models of the samples and the
   * benchmark gain little per row, while each batch takes longer. A list, for models compiled for
   * fixed sizes: a batch is padded with zero rows up to the next allowed size, and its output cut
   * back; rows must be tensors. Each size runs once before the application listens; for that, a
   * model whose inputs may have many shapes, a function, a file or a class needs `warmUp`. An
   * object: a budget for the rows' cost, a latency target, or both.
   *
   * @default 32
   */
  readonly batchSize?: BatchSize;
  /**
   * Milliseconds that a batch that isn't full waits for more rows, from its first one on. With 0 a
   * row runs immediately on an idle partition, and rows collect while all partitions are busy; a lone
   * partition may wait for answered rows that come back soon. A longer time helps only if rows arrive
   * more slowly than the model runs, and each run is expensive.
   *
   * @default 0
   */
  readonly batchTimeout?: number;
  /**
   * The keys of the serving, by name or with options: rows share batches only with rows of the same
   * key, which `batch.withKey(key)` sets.
   *
   * @default ['default']
   */
  readonly batchKeys?: readonly (string | KeyServingOptions)[];
  /**
   * The number of sessions that run in parallel, or the options of each. `true`: one per
   * device of the execution provider; on the CPU one for each core but one. One partition makes the
   * largest batches and needs the least memory; a model's session uses all cores but one by itself.
   *
   * @default 1
   */
  readonly partitions?:
    number | true | readonly (InferenceSession.SessionOptions | PartitionOptions)[];
  /**
   * Example inputs. The first row of each runs once on every partition before the application
   * listens, in batches of each allowed size, or else of the most rows. With a `timeout` each
   * size runs twice, and with a `latencyTarget` several times, also batches of one row, so that the
   * serving knows their times from the first call on. Without examples, models with allowed sizes
   * run zeros.
   *
   * @default []
   */
  readonly warmUp?: readonly Input[];
  /**
   * The timeout in milliseconds of calls without their own `timeout`, except streams; or an object
   * with it and the longest timeout of all calls.
   *
   * @default no limit
   */
  readonly timeout?: number | TimeoutOptions;
  /** The label of its version, and further versions. */
  readonly rollout?: RolloutOptions;
  /** The queue's limits, and its rows' order. */
  readonly queue?: QueueOptions<Input>;
  /** How batches that fail or hang run again, or end. */
  readonly recovery?: RecoveryOptions;
  /** What happens to calls when the application shuts down. */
  readonly shutdown?: ShutdownOptions;
  /**
   * Turns a caller's input into rows: once per call, in the application that has the serving. An
   * error fails that call alone.
   *
   * @default the input is the rows
   */
  preprocess?(
    input: Input,
    context: PreprocessContext<Facts>,
  ): PreprocessResult<Info> | Promise<PreprocessResult<Info>>;
  /**
   * Shapes the reply from the output of the call's own rows: once per call, in the application that
   * has the serving; for a stream, each output.
   *
   * @default the output is the reply
   */
  postprocess?(output: Result, context: PostprocessContext<Info, Facts>): Output | Promise<Output>;
}

/** The options of every serving, however it runs its batches. */
export interface ServingOptions<
  Input = unknown,
  Output = unknown,
  Result = unknown,
  Info = unknown,
  Facts = unknown,
> extends OptionsOfCalls<Input, Output, Result, Info, Facts> {
  /** Calls of other nodes, with `ServingClusterModule`. */
  readonly distribution?: ServingDistributionOptions<Input, Output>;
  /**
   * Shapes a stream as a whole, in place of `postprocess`: once per call, in the application that
   * has the serving. It gets the events as an async iterable and returns the consumer's, as an
   * async iterable (such as an async generator) or an Observable.
   *
   * @default `postprocess` of each output
   */
  postprocessStream?(
    events: AsyncIterable<StreamEvent<Result, string>>,
    context: StreamContext<Info, Facts>,
  ): AsyncIterable<unknown> | Observable<unknown>;
}

/**
 * The path, the bytes or the address of an ONNX file. A relative path is resolved from the working
 * directory. A file at an `https:` address, or on the Hugging Face Hub
 * (`hf:org/repo/path/to/model.onnx@revision`), is fetched to a cache when the serving starts. For
 * other places, give an object that fetches it.
 */
export type ModelFile<Facts = unknown> = string | URL | Uint8Array | RemoteModel<Facts>;

/** An ONNX file and how it runs. */
export interface ModelOptions<Facts = unknown> {
  /** The path, the URL or the bytes of the ONNX file. */
  readonly file: ModelFile<Facts>;
  /**
   * The SHA-256 of the file, in hexadecimal digits; another file fails the start. Required for an
   * `https:` address, where `false` accepts any content.
   *
   * @default on the Hub, the SHA-256 that the Hub states
   */
  readonly sha256?: string | false;
  /**
   * Session options of onnxruntime, passed through; an unknown one fails the boot. Those of a
   * partition override them. Without `intraOpNumThreads` the sessions use all cores but one, which
   * the event loop needs; with `isolation: 'none'` one. The threads give their cores back 20 µs after
   * a run, or as `extra.session.intra_op` sets.
   */
  readonly session?: InferenceSession.SessionOptions;
  /**
   * Batch axes of inputs where the default, read from the model, is wrong, or which the file leaves
   * open. `null` for all inputs: the model has no batch axis, and each call is one run. And axes on
   * which rows may differ in length: `{ input_ids: { variableAxis: 1, padWith: 0 } }`.
   *
   * @default read from the model; rows of different lengths share no batch
   */
  readonly inputs?: DeclaredAxes;
  /**
   * Batch axes of outputs where the default, read from the model, is wrong. And axes on which the
   * rows are cut back to their own inputs' length: `{ logits: { variableAxis: 1 } }`.
   *
   * @default read from the model
   */
  readonly outputs?: DeclaredAxes;
  /**
   * The outputs of the reply. Other outputs are fetched only for calls that ask for them as hooks.
   *
   * @default all outputs
   */
  readonly fetches?: readonly string[];
  /**
   * Whether the start checks that a row's answer is the same alone and in a batch: it runs two rows
   * alone, and then together, and refuses a model whose answers depend on other rows or on padding.
   * A model that can't run two rows runs one at a time. The rows come from `warmUp`, or are made up
   * from the model's shapes.
   *
   * @default true
   */
  readonly checkRows?: boolean;
  /**
   * The state of sessions, as `{ input: 'output' }`: one run's output is the input of the
   * session's next, and zeros come first. Callers neither give nor get it.
   *
   * @default none: calls are independent of each other
   */
  readonly state?: Readonly<Record<string, string>>;
}

/** The repository of a task's model: the task reads its files again in addition to the ONNX file. */
export interface ModelRepository {
  /** A folder, `hf:org/repo`, `hf:org/repo@revision`, or the files themselves by path. */
  readonly from: string | URL | Readonly<Record<string, Uint8Array | string>>;
  /**
   * The ONNX file in it.
   *
   * @default as in the definition
   */
  readonly file?: string;
}

/** An ONNX file, and where its sessions run. */
export interface ModelRunner<Facts = unknown> extends ModelOptions<Facts> {
  /**
   * Where partitions run. `native`: all of them, and all servings of the same file and options,
   * run at the same time on one session, so that the weights are in memory once; on CPUs and
   * CUDA, with the package koffi. `thread`: each has a thread and a session of its own. `process`:
   * each has a process; when it is killed (an abort in native code, out of memory), only its batch
   * is lost.
   * Processes take more memory, and rows and results are copied. `none`: the application's own
   * thread, and each run holds the event loop.
   *
   * @default 'native' where koffi is installed and the session runs on the CPU, 'thread' elsewhere;
   * the log says which
   */
  readonly isolation?: Isolation | 'native' | 'none';
  /**
   * Milliseconds that a run may hold the event loop, with `isolation: 'none'`. After three
   * longer runs in a row the log has a warning, once.
   *
   * @default 2
   */
  readonly blockingLimit?: number;
}

/** The rows that a serving without a model takes and returns. */
export interface SignatureOptions {
  /**
   * The tensors of a row: a call with others is refused before it is queued.
   *
   * @default not checked
   */
  readonly template?: RowTemplate;
  /**
   * The tensors that the batch function returns whose rows are cut back to the length of their own
   * inputs, by path: `{ scores: { variableAxis: 1 } }`. Needs a `variableAxis` in `template`.
   *
   * @default outputs keep their batch's length
   */
  readonly outputs?: OutputAxes;
}

/** What functions, files and classes may declare. */
export interface CodeOptions {
  /** The tensors of their rows. */
  readonly signature?: SignatureOptions | undefined;
}

/** Runs a function in the application's own thread. */
export interface FunctionRunner<Run = BatchFunction | OtherModel> extends CodeOptions {
  /**
   * Builds the batch function, or with `sequence` the model; called once per partition and key at
   * start.
   */
  readonly useFactory: TypedFactory<Run>;
}

/** Runs a module file, in threads or processes of its own. */
export interface FileRunner<Facts = unknown> extends CodeOptions {
  /**
   * The file, by absolute path or `file:` URL. Its default export is called in the thread or
   * process once per key, like `useFactory`, and returns the batch function.
   */
  readonly useFile: string | URL;
  /**
   * Called in the application before partitions start, for example to fetch files. The options that it returns are added to those of each
   * partition, and are copied to its thread or process. An object fetches once for each version, and
   * gives the version's facts in addition.
   *
   * @default nothing is added
   */
  readonly prepare?:
    ((fetching: Fetching) => PartitionOptions | Promise<PartitionOptions>) | RemoteFiles<Facts>;
  /**
   * Whether each partition is a thread or a process, as of a model.
   *
   * @default 'thread'
   */
  readonly isolation?: Isolation | undefined;
}

/** A class whose dependencies Nest injects. */
type ClassOf<Run> = new (...dependencies: never[]) => Run;

/** Runs a class with two methods, created by Nest with its dependencies. */
export interface ClassRunner<Run = AnyRun> extends CodeOptions {
  /** The class, with `init` and `handleBatch`; with `sequence` a `SequenceModel`. */
  readonly useClass: ClassOf<Run>;
}

/** Runs a handler that is already a provider of the application. */
export interface ExistingRunner extends CodeOptions {
  /** The injection token of a provider that implements `ServingHandler`, or `SequenceModel`. */
  readonly useExisting: string | symbol | Function;
}

/** Exactly one of a model file, another program, a function, a module or a class. */
export type Runner<Run = AnyRun, Facts = unknown> =
  | ModelFile<Facts>
  | ExternalModel
  | Only<ModelRunner<Facts>>
  | Only<FileRunner<Facts>>
  | Only<ClassRunner<Run>>
  | Only<ExistingRunner>
  // The compiler's message for what fits none compares with the last one.
  | Only<FunctionRunner<Run>>;

/** Refuses the options of other runners; the compiler's message shows the text. */
type Only<One> = One & {
  readonly [
    Name in Exclude<OptionOfRunners, keyof One>
  ]?: Mistake<'A serving has one runner, with its own options: remove the others'>;
};

type OptionOfRunners =
  | keyof ModelRunner
  | keyof FunctionRunner
  | keyof FileRunner
  | keyof ClassRunner
  | keyof ExistingRunner;

export type ModelIsolation = NonNullable<ModelRunner['isolation']>;

/** The options of all runners; a runner has some of them. */
export type RunnerOptions = Partial<
  ModelRunner & FunctionRunner & Omit<FileRunner, 'isolation'> & ClassRunner & ExistingRunner
>;

/** A named serving with its options, and what runs its batches: an immutable value. */
export interface ServingDefinition<
  Input = unknown,
  Output = unknown,
  Result = unknown,
  Info = unknown,
  Facts = unknown,
> extends ServingOptions<Input, Output, Result, Info, Facts> {
  /** Runs the batches. */
  readonly model: Runner<AnyRun, Facts>;
}

/** A serving of a function. */
export interface FunctionServingDefinition<
  Input = unknown,
  Output = unknown,
> extends ServingOptions<Input, Output> {
  /** Runs the batches. */
  readonly model: FunctionRunner;
}

/**
 * Returns the definition itself, with its types inferred.
 *
 * The input of calls is what `preprocess` takes, or else a row of the batch function. The reply is
 * what `postprocess` returns, or else the batch function's result for the call, which is `Steps`
 * for each row of a generator or a sequence; it stays `unknown` for a model or a file, and where
 * only the input decides whether it is one result or a list.
 */
export function defineServing<
  Input,
  Info,
  Run extends AnyRun,
  Sent = InputOf<Input, Run>,
  Result = AnyOutput<ReplyOf<Sent, Run>>,
  Output = ReplyOf<Sent, Run>,
  Facts = unknown,
>(
  definition: OptionsOfCalls<Input, Output, Result, Info, Facts> &
    TypedCallbacks<Input, Output, Info, Sent, ReplyOf<Sent, Run>, Facts> & {
      readonly model: Runner<Run, Facts>;
    },
): ServingDefinition<InputOf<Input, Run>, Output, Result, Info, Facts>;
export function defineServing(definition: object): object {
  return definition;
}

/** The callbacks again, with the types that a batch function gives them. */
interface TypedCallbacks<Input, Output, Info, Sent, Reply, Facts> {
  readonly distribution?: ServingDistributionOptions<Input, AnyOutput<Output>>;
  preprocess?(
    input: Input,
    context: PreprocessContext<Facts>,
  ): Sending<Sent> | Promise<Sending<Sent>>;
  postprocess?(output: AnyOutput<Reply>, context: PostprocessContext<Info, Facts>): unknown;
  postprocessStream?(
    events: AsyncIterable<StreamEvent<StreamedOutput<Reply>, string>>,
    context: StreamContext<Info, Facts>,
  ): AsyncIterable<unknown> | Observable<unknown>;
}

/** The output of a call, or in a stream one of its outputs. */
type AnyOutput<Reply> = Reply | StreamedOutput<Reply>;

interface Sending<Sent> {
  readonly batch: Sent;
}

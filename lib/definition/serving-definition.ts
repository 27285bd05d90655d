import type { InjectionToken, Type } from '@nestjs/common';
import type { InferenceSession } from 'onnxruntime-common';
import type { Batch } from '../batch/batch.js';
import type { ServingHandler } from '../partitions/handler.partition.js';
import type { DeclaredAxes } from '../partitions/onnx/model-signature.js';
import type { Isolation } from '../partitions/worker/worker.partition.js';
import type { Observable } from 'rxjs';
import type { CallMetadata, StreamEvent } from './reply.js';
import type { RowTemplate } from './row-template.js';
import type { BatchFunctionFactory, PartitionOptions } from '../partitions/batch-function.js';

/** What `preprocess` makes of a caller's input. */
export interface PreprocessResult<Info = unknown> {
  /**
   * A Batch, or tensors whose batch axis counts rows, or one plain value, which is one row; or a
   * lazy sequence of these: an async iterable, an Observable, a generator, or an array of batches.
   */
  readonly batch: unknown;
  /** Private to the call, and to those that join it: handed to `postprocess` as it is. */
  readonly info?: Info;
}

/** What `postprocess` may read beside the output. */
export type PostprocessContext<Info = unknown> = CallMetadata & { readonly info: Info };

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

/** What can differ by key; where an option is not given, that of the serving holds. */
export interface KeyServingOptions {
  /** The most rows of the key that run together. */
  readonly batchSize?: number;
  /**
   * Milliseconds, from its first row, for which a batch of the key that is not full waits for more
   * rows.
   */
  readonly batchTimeout?: number;
  /** The sizes that batches of the key are padded to. */
  readonly allowedSizes?: readonly number[];
  /** Whether every batch of the key is padded to `batchSize`. */
  readonly pad?: boolean;
}

/** How replies are kept. */
export interface ReplyCacheOptions {
  /** Milliseconds for which a reply is kept. */
  readonly ttl: number;
  /**
   * Milliseconds that a call waits for the cache before it goes on without.
   *
   * @default 100
   */
  readonly timeout?: number;
}

/** What every serving has, however it runs its batches. */
export interface ServingOptions<
  Input = unknown,
  Output = unknown,
  Result = unknown,
  Info = unknown,
> {
  /** Unique in the application. */
  readonly name: string;
  /**
   * The most rows that run together.
   *
   * @default 32 past which the models of the samples and the benchmark gain little per row, while
   * each batch takes longer
   */
  readonly batchSize?: number;
  /**
   * Milliseconds, from its first row, for which a batch that is not full waits for more rows.
   *
   * @default 0 a row runs at once on an idle partition, and batches form by themselves while all
   * partitions are busy
   */
  readonly batchTimeout?: number;
  /**
   * The most rows that may wait; a call beyond it fails at once with an OverloadedError.
   *
   * @default 10000
   */
  readonly maxQueue?: number;
  /**
   * The most rows of one call; one with more fails at once with a RequestTooLargeError. Of a stream
   * or a lazy sequence it is the most of one of its batches.
   *
   * @default maxQueue since more could never wait
   */
  readonly maxRows?: number;
  /**
   * The most bytes of the tensors of one call, strings counted as UTF-8; beyond it a
   * RequestTooLargeError. Plain values are not counted.
   *
   * @default undefined no limit
   */
  readonly maxBytes?: number;
  /**
   * The most that waiting rows may cost together, counted by `cost`; a call beyond it fails at once
   * with an OverloadedError.
   *
   * @default no limit
   */
  readonly maxQueueCost?: number;
  /**
   * What the rows of a call count against `maxQueueCost`: a number of 0 or more.
   *
   * @default the bytes of its tensors
   */
  cost?(batch: Batch): number;
  /**
   * Milliseconds in which a call must be answered that names none itself; not for streams.
   *
   * @default no limit
   */
  readonly timeout?: number;
  /**
   * Milliseconds of waiting that count as much as one level of `priority`: so nobody starves.
   *
   * @default 1000
   */
  readonly priorityAgeing?: number;
  /**
   * In whose name a call is made that names nobody itself; `undefined` for nobody in particular.
   */
  tenant?(input: Input): string | undefined;
  /**
   * The shares of tenants, by name: one of weight 2 gets twice as many rows run as one of weight 1,
   * while both have rows that wait.
   *
   * @default 1 for each
   */
  readonly tenantWeights?: Readonly<Record<string, number>>;
  /**
   * Whether a batch may run twice and do no harm: then it runs again when its partition was lost,
   * and when it failed in part.
   *
   * @default true for models, false for functions, files and classes
   */
  readonly idempotent?: boolean;
  /**
   * Whether a batch that fails runs again in halves, until the row at fault fails alone; needs
   * `idempotent`.
   *
   * @default what `idempotent` says
   */
  readonly isolateFailures?: boolean;
  /**
   * How often a batch runs again whose partition was lost while it ran; needs `idempotent`.
   *
   * @default 2
   */
  readonly retries?: number;
  /**
   * How many sessions run side by side, or the options of each of them; `true`: one per device of
   * the execution provider, on the CPU one for each core but one.
   *
   * @default 1 the largest batches and the least memory; a model's session uses all cores but one
   * by itself
   */
  readonly partitions?:
    number | true | readonly (InferenceSession.SessionOptions | PartitionOptions)[];
  /**
   * The keys of the serving: rows batch only with rows of their own key. A batch names it with
   * `withKey`.
   *
   * @default ['default']
   */
  readonly batchKeys?: readonly string[];
  /** Options of single keys, by key. */
  readonly keyOptions?: Readonly<Record<string, KeyServingOptions>>;
  /**
   * The sizes that a batch may have, for models that are compiled for fixed ones: it is padded with
   * zero rows up to the next of them, and the output is cut back. Each size runs once before the
   * application listens; for that a model whose inputs may have many shapes, a function, a file or
   * a class needs `warmUp`. Rows must be tensors.
   */
  readonly allowedSizes?: readonly number[];
  /**
   * Pads every batch to `batchSize`: short for `allowedSizes: [batchSize]`.
   *
   * @default false
   */
  readonly pad?: boolean;
  /**
   * Inputs as callers give them. The first row of each runs once before the application listens, on
   * every partition, in batches of the allowed sizes, or else of `batchSize` rows.
   *
   * @default [] models with allowed sizes run zeros
   */
  readonly warmUp?: readonly Input[];
  /**
   * Whether rows of different origins (HTTP, RPC, WebSocket, GraphQL, in-process) never share a
   * batch; the batch function is then told the origin.
   *
   * @default false
   */
  readonly separateOrigins?: boolean;
  /**
   * Milliseconds that a batch may run, those of its steps together; callers of one that takes
   * longer get a RunTimeoutError. A partition that is a process is then killed and started again;
   * any other takes no more batches until that one has returned.
   *
   * @default none a batch may run as long as it likes
   */
  readonly runTimeout?: number;
  /**
   * Whether concurrent calls of `batchedRun` whose inputs are the same run once: later ones join
   * the first while it is under way.
   *
   * @default false
   */
  readonly singleFlight?: boolean;
  /**
   * What tells an input from others, for `singleFlight` and `cache`: everything that the answer
   * depends on. `undefined` for an input that shares with no other.
   *
   * @default contentHash of the input
   */
  identify?(input: Input): string | undefined;
  /**
   * Keeps the replies of `batchedRun` in the application's cache manager, of
   * `@nestjs/cache-manager`.
   *
   * @default none
   */
  readonly cache?: ReplyCacheOptions;
  /**
   * Whether rows still queued at shutdown are run, or answered with a ServingClosedError.
   *
   * @default true
   */
  readonly drainOnShutdown?: boolean;
  /**
   * Milliseconds that shutdown waits for queued and running batches.
   *
   * @default 30000
   */
  readonly drainTimeout?: number;
  /** Calls of other nodes, with `ServingClusterModule`. */
  readonly distribution?: ServingDistributionOptions<Input, Output>;
  /**
   * Turns a caller's input into rows: on the caller's side, once per call. A throw fails that call
   * alone.
   */
  preprocess?(input: Input): PreprocessResult<Info> | Promise<PreprocessResult<Info>>;
  /**
   * Shapes the reply from the output for the call's own rows: on the caller's side, once per call;
   * of a stream, each output.
   */
  postprocess?(output: Result, context: PostprocessContext<Info>): Output | Promise<Output>;
  /**
   * Shapes a stream as a whole, in place of `postprocess`: on the caller's side, once per call. It
   * gets the events as they come and returns what its consumer is to get, as an async iterable
   * (such as an async generator gives) or an Observable.
   */
  postprocessStream?(
    events: AsyncIterable<StreamEvent<Result, string>>,
    context: { readonly info: Info },
  ): AsyncIterable<unknown> | Observable<unknown>;
}

/**
 * Where the sessions of models and module files live, and what happens when their thread or process
 * ends.
 */
export interface WorkerOptions {
  /**
   * Whether each partition has a thread or a process of its own. What kills a process (an abort in
   * native code, the system that is out of memory) costs its batch, and not the application; it
   * takes more memory, and rows and results are copied.
   *
   * @default 'thread'
   */
  readonly isolation?: Isolation;
  /**
   * Milliseconds, at most, before it is started again; doubles with each failure in a row, up to 30
   * s. The time is drawn at random from 0 on, so that partitions that have failed together do not
   * start together.
   *
   * @default 100
   */
  readonly restartDelay?: number;
  /**
   * How often it is started again without having run a batch. After that the partition is lost, and
   * is tried again every 30 s; calls fail at once when all partitions are.
   *
   * @default 5 with starts that fail at once, after 3 s at most
   */
  readonly maxRestarts?: number;
  /**
   * Milliseconds in which it must be loaded and warm when it is started again. A process that is
   * not is killed, and that start has failed; a thread cannot be, and is reported as hung until it
   * is.
   *
   * @default 600000 so that a model may be compiled once more
   */
  readonly restartTimeout?: number;
}

/** A serving of an ONNX model: its sessions run in threads or processes of their own. */
export interface ModelServingDefinition<
  Input = unknown,
  Output = unknown,
  Result = unknown,
  Info = unknown,
>
  extends ServingOptions<Input, Output, Result, Info>, WorkerOptions {
  /** The path or the bytes of the ONNX file; a relative path counts from the working directory. */
  readonly model: string | URL | Uint8Array;
  /** Session options of onnxruntime, passed through; those of a partition win. */
  readonly session?: InferenceSession.SessionOptions;
  /**
   * Batch axes of inputs for which the default, read from the model, is wrong, or which the file
   * leaves open. `null` for all inputs: the model has no batch axis, and each call is one run.
   */
  readonly inputs?: DeclaredAxes;
  /** Batch axes of outputs for which the default, read from the model, is wrong. */
  readonly outputs?: DeclaredAxes;
  /**
   * The outputs that make the reply. The others are fetched only for calls that ask for them as
   * hooks.
   *
   * @default all outputs
   */
  readonly fetches?: readonly string[];
}

/** What rows must be like, where no model says it. */
export interface TemplateOptions {
  /**
   * The tensors that rows are made of: a call with others is refused before it waits.
   *
   * @default not checked
   */
  readonly template?: RowTemplate;
}

/** A serving of a function that runs in the application's own thread. */
export interface FunctionServingDefinition<
  Input = unknown,
  Output = unknown,
  Result = unknown,
  Info = unknown,
>
  extends ServingOptions<Input, Output, Result, Info>, TemplateOptions {
  /** Builds the function that runs a batch; called once per partition and key at start. */
  readonly useFactory: BatchFunctionFactory;
}

/** A serving of a module file that runs in threads or processes of its own. */
export interface FileServingDefinition<
  Input = unknown,
  Output = unknown,
  Result = unknown,
  Info = unknown,
>
  extends ServingOptions<Input, Output, Result, Info>, WorkerOptions, TemplateOptions {
  /**
   * The file, by absolute path or `file:` URL. Its default export is what `useFactory` is
   * elsewhere: called in the thread or process once per key, it sets up and returns the function
   * that gets every batch.
   */
  readonly useFile: string | URL;
}

/** A serving of a class with two methods, created by Nest with its dependencies. */
export interface ClassServingDefinition<
  Input = unknown,
  Output = unknown,
  Result = unknown,
  Info = unknown,
>
  extends ServingOptions<Input, Output, Result, Info>, TemplateOptions {
  readonly useClass: Type<ServingHandler>;
}

/** A serving of a handler that is a provider of the application already. */
export interface ExistingServingDefinition<
  Input = unknown,
  Output = unknown,
  Result = unknown,
  Info = unknown,
>
  extends ServingOptions<Input, Output, Result, Info>, TemplateOptions {
  readonly useExisting: InjectionToken<ServingHandler>;
}

/** A named model with its options: a value, which nothing changes. */
export type ServingDefinition<Input = unknown, Output = unknown, Result = unknown, Info = unknown> =
  | ModelServingDefinition<Input, Output, Result, Info>
  | FunctionServingDefinition<Input, Output, Result, Info>
  | FileServingDefinition<Input, Output, Result, Info>
  | ClassServingDefinition<Input, Output, Result, Info>
  | ExistingServingDefinition<Input, Output, Result, Info>;

/**
 * Gives the definition back as it is, with the types of its callbacks inferred: input, output,
 * result and info.
 */
export function defineServing<Input, Output, Result, Info>(
  definition: ServingDefinition<Input, Output, Result, Info>,
): ServingDefinition<Input, Output, Result, Info> {
  return definition;
}

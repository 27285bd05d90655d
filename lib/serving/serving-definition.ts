import type { InjectionToken, Type } from '@nestjs/common';
import type { InferenceSession } from 'onnxruntime-common';
import type { ServingHandler } from '../partitions/handler.partition.js';
import type { DeclaredAxes } from '../partitions/model-signature.js';
import type { BatchFunctionFactory, PartitionOptions } from '../partitions/partition.js';
import type { Observable } from 'rxjs';
import type { Serving } from './serving.js';
import type { StreamEvent } from './stream-event.js';

/** What `preprocess` makes of a caller's input. */
export interface Prepared<Info = unknown> {
  /**
   * A Batch, or tensors whose batch axis counts rows, or one plain value, which is one row; or a lazy sequence of these: an async
   * iterable, an Observable, a generator, or an array of batches.
   */
  readonly batch: unknown;
  /** Private to the call, and to those that join it: handed to `postprocess` as it is. */
  readonly info?: Info;
}

/** What `postprocess` may read beside the output. */
export interface PostprocessContext<Info = unknown> {
  /** What the batch function said of the batch; of the batch with the call's first row, if the call was split. */
  readonly metadata: unknown;
  readonly info: Info;
}

/** What can differ by key; where an option is not given, that of the serving holds. */
export interface KeyServingOptions {
  /** The most rows of the key that run together. */
  readonly batchSize?: number;
  /** Milliseconds, from its first row, for which a batch of the key that is not full waits for more rows. */
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
export interface ServingOptions<Input = unknown, Output = unknown, Result = unknown, Info = unknown> {
  /** Unique in the application. */
  readonly name: string;
  /**
   * The most rows that run together.
   *
   * @default 32 past which the models of the samples and the benchmark gain little per row, while each batch takes longer
   */
  readonly batchSize?: number;
  /**
   * Milliseconds, from its first row, for which a batch that is not full waits for more rows.
   *
   * @default 0 a row runs at once on an idle partition, and batches form by themselves while all partitions are busy
   */
  readonly batchTimeout?: number;
  /**
   * The most rows that may wait; a call beyond it fails at once with an OverloadedError.
   *
   * @default 10000
   */
  readonly maxQueue?: number;
  /**
   * How many sessions run side by side, or the options of each of them; `true`: one per device of the execution provider,
   * on the CPU one for each core but one.
   *
   * @default 1 the largest batches and the least memory; a model's session uses all cores but one by itself
   */
  readonly partitions?: number | true | readonly (InferenceSession.SessionOptions | PartitionOptions)[];
  /**
   * The keys of the serving: rows batch only with rows of their own key. A batch names it with `withKey`.
   *
   * @default ['default']
   */
  readonly batchKeys?: readonly string[];
  /** Options of single keys, by key. */
  readonly keyOptions?: Readonly<Record<string, KeyServingOptions>>;
  /**
   * The sizes that a batch may have, for models that are compiled for fixed ones: it is padded with zero rows up to the next of
   * them, and the output is cut back. Each size runs once before the application listens; for that a model whose inputs may
   * have many shapes, a function, a file or a class needs `warmUp`. Rows must be tensors.
   */
  readonly allowedSizes?: readonly number[];
  /**
   * Pads every batch to `batchSize`: short for `allowedSizes: [batchSize]`.
   *
   * @default false
   */
  readonly pad?: boolean;
  /**
   * Inputs as callers give them. The first row of each runs once before the application listens, on every partition, in batches
   * of the allowed sizes, or else of `batchSize` rows.
   *
   * @default [] models with allowed sizes run zeros
   */
  readonly warmUp?: readonly Input[];
  /**
   * Whether rows of different origins (HTTP, RPC, WebSocket, GraphQL, in-process) never share a batch; the batch function is then
   * told the origin.
   *
   * @default false
   */
  readonly separateOrigins?: boolean;
  /**
   * Whether concurrent calls of `batchedRun` whose inputs are the same run once: later ones join the first while it is under way.
   *
   * @default false
   */
  readonly singleFlight?: boolean;
  /**
   * What tells an input from others, for `singleFlight` and `cache`: everything that the answer depends on. `undefined` for an input that
   * shares with no other.
   *
   * @default contentHash of the input
   */
  identify?(input: Input): string | undefined;
  /**
   * Keeps the replies of `batchedRun` in the application's cache manager, of `@nestjs/cache-manager`.
   *
   * @default none
   */
  readonly cache?: ReplyCacheOptions;
  /**
   * Whether rows still queued at shutdown are run, or answered with a ServingClosedError.
   *
   * @default true
   */
  readonly drain?: boolean;
  /**
   * Milliseconds that shutdown waits for queued and running batches.
   *
   * @default 30000
   */
  readonly shutdown?: number;
  /** Turns a caller's input into rows: on the caller's side, once per call. A throw fails that call alone. */
  preprocess?(input: Input): Prepared<Info> | Promise<Prepared<Info>>;
  /**
   * Shapes the reply from the output for the call's own rows: on the caller's side, once per call; of a stream, each output.
   */
  postprocess?(output: Result, context: PostprocessContext<Info>): Output | Promise<Output>;
  /**
   * Shapes a stream as a whole, in place of `postprocess`: on the caller's side, once per call. It gets the events as they come and
   * returns what its consumer is to get, as an async iterable (such as an async generator gives) or an Observable.
   */
  postprocessStream?(
    events: AsyncIterable<StreamEvent<Result, string>>,
    context: { readonly info: Info },
  ): AsyncIterable<unknown> | Observable<unknown>;
}

/** A serving of an ONNX model: its sessions run in threads of their own. */
export interface ModelServingDefinition<
  Input = unknown,
  Output = unknown,
  Result = unknown,
  Info = unknown,
> extends ServingOptions<Input, Output, Result, Info> {
  /** The path or the bytes of the ONNX file; a relative path counts from the working directory. */
  readonly model: string | URL | Uint8Array;
  /** Session options of onnxruntime, passed through; those of a partition win. */
  readonly session?: InferenceSession.SessionOptions;
  /** Batch axes of inputs for which the default, read from the model, is wrong. */
  readonly inputs?: DeclaredAxes;
  /** Batch axes of outputs for which the default, read from the model, is wrong. */
  readonly outputs?: DeclaredAxes;
  /**
   * The outputs that make the reply. The others are fetched only for calls that ask for them as hooks.
   *
   * @default all outputs
   */
  readonly fetches?: readonly string[];
}

/** A serving of a function that runs in the application's own thread. */
export interface FunctionServingDefinition<
  Input = unknown,
  Output = unknown,
  Result = unknown,
  Info = unknown,
> extends ServingOptions<Input, Output, Result, Info> {
  /** Builds the function that runs a batch; called once per partition and key at start. */
  readonly useFactory: BatchFunctionFactory;
}

/** A serving of a module file that runs in threads of its own. */
export interface FileServingDefinition<
  Input = unknown,
  Output = unknown,
  Result = unknown,
  Info = unknown,
> extends ServingOptions<Input, Output, Result, Info> {
  /**
   * The file, by absolute path or `file:` URL. Its default export is what `useFactory` is elsewhere: called in the thread
   * once per key, it sets up and returns the function that gets every batch.
   */
  readonly useFile: string | URL;
}

/** A serving of a class with two methods, created by Nest with its dependencies. */
export interface ClassServingDefinition<
  Input = unknown,
  Output = unknown,
  Result = unknown,
  Info = unknown,
> extends ServingOptions<Input, Output, Result, Info> {
  readonly useClass: Type<ServingHandler>;
}

/** A serving of a handler that is a provider of the application already. */
export interface ExistingServingDefinition<
  Input = unknown,
  Output = unknown,
  Result = unknown,
  Info = unknown,
> extends ServingOptions<Input, Output, Result, Info> {
  readonly useExisting: InjectionToken<ServingHandler>;
}

/** A named model with its options: a value, which nothing changes. */
export type ServingDefinition<Input = unknown, Output = unknown, Result = unknown, Info = unknown> =
  | ModelServingDefinition<Input, Output, Result, Info>
  | FunctionServingDefinition<Input, Output, Result, Info>
  | FileServingDefinition<Input, Output, Result, Info>
  | ClassServingDefinition<Input, Output, Result, Info>
  | ExistingServingDefinition<Input, Output, Result, Info>;

/** Gives the definition back as it is, with the types of its callbacks inferred: input, output, result and info. */
export function defineServing<Input, Output, Result, Info>(
  definition: ServingDefinition<Input, Output, Result, Info>,
): ServingDefinition<Input, Output, Result, Info> {
  return definition;
}

/** The handle of a definition: `ServingOf<typeof embedder>`. */
export type ServingOf<Definition> =
  Definition extends ServingOptions<infer Input, infer Output, infer _Result, infer _Info> ? Serving<Input, Output> : never;

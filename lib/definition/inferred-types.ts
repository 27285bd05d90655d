import type { Tensor } from 'onnxruntime-common';
import type { Batch } from '../batch/batch.js';
import type { Container } from '../batch/container.js';
import type {
  BatchContext,
  BatchFunctionContext,
  BatchResult,
  WithMetadata,
} from '../partitions/batch-function.js';
import type { AnySequenceModel } from '../partitions/sequence/sequence-model.js';

/**
 * A factory whose batch function has these types; it may return a promise or a generator. Or one
 * whose sequence model starts with these rows, and has these results of a step.
 */
export type TypedFactory<Rows, Returned> =
  | NoFactory<'useFactory returns the batch function: write useFactory: () => (rows) => results'>
  | ((
      site: BatchFunctionContext,
    ) => TypedRunner<Rows, Returned> | Promise<TypedRunner<Rows, Returned>>);

/** A type that no value has. If a value is not a factory, the compiler's message shows the text. */
interface NoFactory<Text extends string> extends Mistake<Text> {
  (site: BatchFunctionContext): never;
}

type TypedRunner<Rows, Returned> =
  ((rows: Rows, batch: BatchContext) => Returned) | AnySequenceModel<Rows, Returned>;

/** The return type of a factory; for a sequence a generator, since a step gives no reply. */
export type StepsOf<Returned, Steps> = [Steps] extends [never] ? Returned : Generator;

/** The input of calls: that of the callbacks, or else a row of the batch function. */
export type InputOf<Input, Rows> = unknown extends Input ? RowOf<Rows> : Input;

/**
 * The runner's result for one call, which is what `postprocess` gets: `unknown` for models and
 * files, for generators, and where only the input decides whether it is one result or a list.
 * `Sent` is the batch of `preprocess`.
 */
export type ReplyOf<Sent, Rows, Returned, Handler> =
  ResultOf<Returned, Handler> extends infer Result
    ? Result extends readonly (infer Entry)[]
      ? EntriesOf<Sent, Rows, Exclude<Awaited<Entry>, Error>>
      : Result
    : never;

type ResultOf<Returned, Handler> = [Returned] extends [never]
  ? [Handler] extends [never]
    ? unknown
    : Handler extends HandlerType<infer Handled>
      ? Awaited<Handled> extends BatchResult<infer Output>
        ? Output
        : unknown
      : unknown
  : Unwrapped<Awaited<Returned>>;

type HandlerType<Handled> = new (...args: never[]) => { handleBatch(...args: never[]): Handled };

type Unwrapped<Returned> = Returned extends
  Generator<unknown, unknown> | AsyncGenerator<unknown, unknown>
  ? unknown
  : Returned extends WithMetadata<infer Output>
    ? Output
    : Returned;

/** A row of a list. Tensors come as they are sent; a list of tensors can be either. */
type RowOf<Rows> = [Rows] extends [never]
  ? unknown
  : Rows extends readonly (infer Row)[]
    ? [Row] extends [Container]
      ? unknown
      : Row
    : Rows;

/** One entry for one plain value, a list for everything that has several rows. */
type EntriesOf<Sent, Rows, Entry> = unknown extends Sent
  ? unknown
  : Sent extends string | number | bigint | boolean | null | undefined | symbol
    ? Entry
    : Sent extends Batch | readonly Batch[] | Tensor | Sequence
      ? Entry[]
      : unknown extends RowOf<Rows>
        ? unknown
        : Rows extends readonly unknown[]
          ? Sent extends RowOf<Rows>
            ? Entry
            : unknown
          : Entry[];

type Sequence =
  | AsyncIterable<unknown>
  | Iterator<unknown>
  | { subscribe(...args: never[]): unknown; pipe(...args: never[]): unknown };

/** A type that no value has. The compiler's message shows the text. */
export interface Mistake<Text extends string> {
  readonly [mistake]: Text;
}

declare const mistake: unique symbol;

import type { Tensor } from 'onnxruntime-common';
import type { Batch } from '../batch/batch.js';
import type { Container } from '../batch/container.js';
import type {
  BatchContext,
  BatchFunctionContext,
  BatchResult,
  WithMetadata,
} from '../partitions/batch-function.js';
import type { AnySequenceModel, Last } from '../partitions/sequence/sequence-model.js';
import type { Steps } from './reply.js';

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

/** The input of calls: that of the callbacks, or else a row of the runner. */
export type InputOf<Input, Rows, Handler, Sequence> = unknown extends Input
  ? RowOf<TakenRows<Rows, Handler, Sequence>>
  : Input;

/**
 * The runner's result for one call: `unknown` for models and files, and where only the input decides
 * whether it is one result or a list. `Sent` is the batch of `preprocess`. Of a generator or a
 * sequence each result is the {@link Steps} of its row.
 */
export type ReplyOf<Sent, Rows, Returned, Handler, Sequence> =
  ResultOf<Returned, Handler, Sequence> extends infer Result
    ? Result extends readonly (infer Entry)[]
      ? EntriesOf<Sent, TakenRows<Rows, Handler, Sequence>, Exclude<Awaited<Entry>, Error>>
      : Result
    : never;

/** The rows of a sequence are a list also where they are tensors: then each call sends one row. */
type TakenRows<Rows, Handler, Sequence> = [Sequence] extends [never]
  ? Rows
  : [Handler] extends [never]
    ? StartedRows<Rows>
    : Handler extends SequenceType<infer Inputs, unknown>
      ? StartedRows<Inputs>
      : unknown;

type StartedRows<Rows> = Rows extends readonly (infer Row)[]
  ? [Row] extends [Container]
    ? Row
    : Rows
  : unknown;

type ResultOf<Returned, Handler, Sequence> = [Returned] extends [never]
  ? [Handler] extends [never]
    ? unknown
    : Handler extends HandlerType<infer Handled>
      ? HandledResult<Awaited<Handled>>
      : Handler extends SequenceType<never, infer Results>
        ? StepsOf<Awaited<Results>>
        : unknown
  : [Sequence] extends [never]
    ? Unwrapped<Awaited<Returned>>
    : StepsOf<Awaited<Returned>>;

type HandlerType<Handled> = new (...args: never[]) => { handleBatch(...args: never[]): Handled };

type SequenceType<Inputs, Results> = new (...args: never[]) => AnySequenceModel<Inputs, Results>;

type HandledResult<Handled> =
  Handled extends AnyGenerator<infer Step>
    ? StepsOf<Step>
    : Handled extends BatchResult<infer Output>
      ? Output
      : unknown;

type Unwrapped<Returned> =
  Returned extends AnyGenerator<infer Step>
    ? StepsOf<Step>
    : Returned extends WithMetadata<infer Output>
      ? Output
      : Returned;

type AnyGenerator<Step> = Generator<Step, unknown> | AsyncGenerator<Step, unknown>;

/** The results of rows whose steps have these lists. */
type StepsOf<Lists> = Steps<ValueIn<Awaited<EntryIn<Lists>>>>[];

type EntryIn<List> =
  List extends WithMetadata<infer Entries>
    ? EntryIn<Entries>
    : List extends readonly (infer Entry)[]
      ? Entry
      : unknown;

/** `DONE` can be inferred as any symbol. */
type ValueIn<Entry> =
  Entry extends Last<infer Value> ? Awaited<Value> : Exclude<Entry, Error | symbol>;

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
    : Sent extends Batch | readonly Batch[] | Tensor | LazyRows
      ? Entry[]
      : unknown extends RowOf<Rows>
        ? unknown
        : Rows extends readonly unknown[]
          ? Sent extends RowOf<Rows>
            ? Entry
            : unknown
          : Entry[];

type LazyRows =
  | AsyncIterable<unknown>
  | Iterator<unknown>
  | { subscribe(...args: never[]): unknown; pipe(...args: never[]): unknown };

/** A type that no value has. The compiler's message shows the text. */
export interface Mistake<Text extends string> {
  readonly [mistake]: Text;
}

declare const mistake: unique symbol;

import type { Tensor } from 'onnxruntime-common';
import type { Batch } from '../batch/batch.js';
import type { Container } from '../batch/container.js';
import type {
  BatchContext,
  BatchFunctionContext,
  BatchResult,
  Marked,
  OtherModel,
  WithMetadata,
} from '../partitions/batch-function.js';
import type { Steps } from './reply.js';

export type AnyRun = ((rows: never, batch: BatchContext) => unknown) | OtherModel | AnyHandler;

interface AnyHandler<Handled = unknown> {
  handleBatch(...args: never[]): Handled;
}

export type TypedFactory<Run> =
  | NoFactory<'useFactory returns the batch function: write useFactory: () => (rows) => results'>
  | ((site: BatchFunctionContext) => Run | Promise<Run>);

/** If a value is not a factory, the compiler's message shows the text. */
interface NoFactory<Text extends string> extends Mistake<Text> {
  (site: BatchFunctionContext): never;
}

/** What the callbacks take, or else a row of the runner. */
export type InputOf<Input, Run> = unknown extends Input ? RowOf<TakenRows<Run>> : Input;

/**
 * The runner's result for one call: `unknown` for models and files, and if only the input decides
 * whether it is one result or a list. `Sent` is the batch of `preprocess`. Each result of a
 * generator or a sequence is its row's {@link Steps}.
 */
export type ReplyOf<Sent, Run> =
  ResultOf<Run> extends infer Result
    ? Result extends readonly (infer Entry)[]
      ? EntriesOf<Sent, TakenRows<Run>, Exclude<Awaited<Entry>, Error>>
      : Result
    : never;

/** A feature's model starts a list of rows even if they are tensors: then each call sends one row. */
type TakenRows<Run> = AnyRun extends Run
  ? unknown
  : Run extends AnyHandler
    ? unknown
    : Run extends OtherModel<infer Inputs>
      ? StartedRows<Inputs>
      : Run extends (rows: infer Rows, ...others: never[]) => unknown
        ? Rows
        : unknown;

type StartedRows<Rows> = Rows extends readonly (infer Row)[]
  ? [Row] extends [Container]
    ? Row
    : Rows
  : unknown;

type ResultOf<Run> = AnyRun extends Run
  ? unknown
  : Run extends AnyHandler<infer Handled>
    ? HandledResult<Awaited<Handled>>
    : Run extends OtherModel<never, infer Results>
      ? StepsOf<Awaited<Results>>
      : Run extends (...args: never[]) => infer Returned
        ? Unwrapped<Awaited<Returned>>
        : unknown;

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

type StepsOf<Lists> = Steps<ValueIn<Awaited<EntryIn<Lists>>>>[];

type EntryIn<List> =
  List extends WithMetadata<infer Entries>
    ? EntryIn<Entries>
    : List extends readonly (infer Entry)[]
      ? Entry
      : unknown;

/** `DONE` can be inferred as any symbol. */
type ValueIn<Entry> =
  Entry extends Marked<infer Value> ? Awaited<Value> : Exclude<Entry, Error | symbol>;

/** Tensors come as they are sent; a list of tensors can be either. */
type RowOf<Rows> = [Rows] extends [never]
  ? unknown
  : Rows extends readonly (infer Row)[]
    ? [Row] extends [Container]
      ? unknown
      : Row
    : Rows;

/** One entry for one plain value, a list for several rows. */
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

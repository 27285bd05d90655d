import { RowReader, Batch, DEFAULT_KEY } from '../batch/batch.js';
import { copyInput } from '../batch/deep-copy.js';
import type { BatchAxes } from '../batch/template.js';
import type { CallMetadata, StreamEvent } from '../definition/reply.js';
import type { BatchOutput } from '../partitions/batch-function.js';
import { type ResolvedCallOptions, Waits } from './resolved-call-options.js';
import type { Callbacks } from '../definition/resolved-serving.js';
import {
  afterRun,
  InvalidBatchError,
  InvalidInputError,
  InvalidServingError,
  isError,
  isThenable,
  noteRun,
} from '../errors.js';
import type { ServingSignature } from '../partitions/model/model-signature.js';
import { formatValue } from '../format.js';
import { leave, ownsValuesOf, readOnce, type Source, sourceOf } from '../streaming/source.js';
import type {
  PostprocessContext,
  PreprocessContext,
  PreprocessResult,
} from '../definition/serving-definition.js';
import type { Counters } from '../events/event-hub.js';
import { type ReplyEnd, withoutErrors } from './request.js';

/** Runs `preprocess` and `postprocess`, within the caller's time limits. */
export class CallerSide {
  readonly preparing = new Waits();
  readonly finishing = new Waits();
  private readonly reader: RowReader;
  private readonly context: Omit<PreprocessContext, 'signal'>;

  constructor(
    private readonly callbacks: Callbacks,
    inputAxes: BatchAxes,
    signature?: ServingSignature,
    facts?: unknown,
  ) {
    this.reader = new RowReader(inputAxes);
    this.context = { signature, facts };
  }

  /** No promise if nothing is asynchronous: it would cost a microtask. */
  prepare(input: unknown, resolved: ResolvedCallOptions, left?: AbortSignal): Call | Promise<Call> {
    const { callbacks } = this;
    const { key } = resolved;
    const leaving = new Leaving();
    const prepared = prepareCall(callbacks, input, this.reader, this.context, leaving);
    if (!(prepared instanceof Promise)) {
      return key === undefined ? prepared : withKey(callbacks, prepared, key);
    }
    const ready =
      key === undefined ? prepared : prepared.then((call) => withKey(callbacks, call, key));
    const call = this.preparing.for(ready, resolved, left);
    // Rows of a call cancelled earlier have no reader.
    call.catch((reason: unknown) => {
      leaving.end(reason);
      prepared.then(dropCall, () => {});
    });
    return call;
  }

  finish(
    call: Call,
    output: BatchOutput,
    metadata: CallMetadata,
    resolved: ResolvedCallOptions,
  ): unknown {
    const reply = finishCall(this.callbacks, call, output, metadata, this.context.facts);
    return reply instanceof Promise ? this.finishing.for(reply, resolved) : reply;
  }

  finishStream(
    call: Call,
    events: AsyncIterable<StreamEvent<unknown, string>>,
    resolved: ResolvedCallOptions,
  ): AsyncGenerator<unknown, void> {
    const waitFor = <T>(work: Promise<T>): Promise<T> => this.finishing.for(work, resolved);
    return finishStream(this.callbacks, call, events, this.context.facts, waitFor);
  }
}

/** Its signal is made when `preprocess` reads it. */
class Leaving {
  private controller: AbortController | undefined;
  private ended: { readonly reason: unknown } | undefined;

  get signal(): AbortSignal {
    if (!this.controller) {
      this.controller = new AbortController();
      this.abort();
    }
    return this.controller.signal;
  }

  end(reason: unknown): void {
    this.ended = { reason };
    this.abort();
  }

  private abort(): void {
    if (this.ended) {
      this.controller?.abort(this.ended.reason);
    }
  }
}

export interface Call {
  readonly rows: Batch | Source<Batch>;
  /** The input was one plain value, so the reply is one result. */
  readonly single: boolean;
  readonly isOpen: boolean;
  readonly info: unknown;
}

/** @throws InvalidInputError for an iterator that another call reads */
export function prepareCall(
  callbacks: Callbacks,
  input: unknown,
  reader = new RowReader(),
  context: Omit<PreprocessContext, 'signal'> = { signature: undefined, facts: undefined },
  leaving = new Leaving(),
): Call | Promise<Call> {
  const batch = callbacks.preprocess ? undefined : reader.readLikeLast(input);
  if (batch) {
    return { rows: batch, single: false, isOpen: false, info: undefined };
  }
  readOnce(input);
  return callbacks.preprocess
    ? preprocess(callbacks, input, reader, {
        ...context,
        get signal() {
          return leaving.signal;
        },
      })
    : callOf(callbacks, input, undefined, reader);
}

/** @throws InvalidInputError if a batch has another key */
export function withKey({ name }: Callbacks, call: Call, key: string): Call {
  const { rows } = call;
  if (rows instanceof Batch) {
    return { ...call, rows: keyed(name, rows, key) };
  }
  const source: Source<Batch> = {
    async next() {
      const { done, value } = await rows.next();
      return done ? { done, value: undefined } : { done: false, value: keyed(name, value, key) };
    },
    return: async () => (await rows.return?.()) as IteratorReturnResult<undefined>,
  };
  return { ...call, rows: source };
}

function keyed(serving: string, batch: Batch, key: string): Batch {
  if (batch.key !== DEFAULT_KEY && batch.key !== key) {
    throw new InvalidInputError(
      `A call to serving "${serving}" names the key ${formatValue(key)}, and its batch has the ` +
        `key ${formatValue(batch.key)}; name one of them`,
    );
  }
  return batch.withKey(key);
}

export function dropCall({ rows }: Call): void {
  if (!(rows instanceof Batch)) {
    leave(rows);
  }
}

export function finishCall(
  callbacks: Callbacks,
  call: Call,
  output: BatchOutput,
  said: CallMetadata,
  facts?: unknown,
): unknown {
  const result = unwrap(call, output);
  const { postprocess } = callbacks;
  return postprocess ? afterRun(() => postprocess(result, contextOf(call, said, facts))) : result;
}

function contextOf({ info }: Call, said: CallMetadata, facts: unknown): PostprocessContext {
  return said.isSplit
    ? { isSplit: true, metadata: said.metadata, info, facts }
    : { isSplit: false, metadata: said.metadata, info, facts };
}

export async function* finishStream(
  callbacks: Callbacks,
  { info }: Call,
  events: AsyncIterable<StreamEvent<unknown, string>>,
  facts: unknown,
  waitFor: <T>(work: Promise<T>) => Promise<T> = (work) => work,
): AsyncGenerator<unknown, void> {
  if (callbacks.postprocessStream) {
    let failure: unknown;
    const given = (async function* () {
      try {
        yield* events;
      } catch (error) {
        failure = error;
        throw error;
      }
    })();
    try {
      const shaped = callbacks.postprocessStream(given, { info, facts });
      yield* elementsOf(callbacks.name, shaped, waitFor);
    } catch (error) {
      // The rows' own refusal passes unmarked.
      throw error === failure ? error : noteRun(error);
    }
    return;
  }
  for await (const event of events) {
    if (!('output' in event && callbacks.postprocess)) {
      yield event;
      continue;
    }
    const { output, metadata } = event;
    const { postprocess } = callbacks;
    const shaped = afterRun(() => postprocess(output, { isSplit: false, metadata, info, facts }));
    yield { ...event, output: shaped instanceof Promise ? await waitFor(shaped) : shaped };
  }
}

export function unwrap({ single }: { readonly single: boolean }, output: unknown): unknown {
  return single && Array.isArray(output) ? output[0] : output;
}

async function* elementsOf(
  serving: string,
  lazy: unknown,
  waitFor: <T>(work: Promise<T>) => Promise<T>,
): AsyncGenerator<unknown, void> {
  const source = sourceOf(lazy, (value) => value);
  if (!source) {
    throw new InvalidServingError(
      `Serving "${serving}": postprocessStream must return an async iterable or an Observable, ` +
        `it returned ${formatValue(lazy)}`,
    );
  }
  try {
    const pull = (): Promise<IteratorResult<unknown>> => waitFor(Promise.resolve(source.next()));
    for (let next = await pull(); !next.done; next = await pull()) {
      yield next.value;
    }
  } finally {
    leave(source);
  }
}

function preprocess(
  callbacks: Callbacks,
  input: unknown,
  reader: RowReader,
  context: PreprocessContext,
): Call | Promise<Call> {
  try {
    const prepared = afterRun(() => callbacks.preprocess!(input, context));
    return isThenable(prepared)
      ? Promise.resolve(prepared).then(
          (own) => preprocessed(callbacks, own, reader),
          (cause: unknown) => Promise.reject(tensorError(callbacks, cause)),
        )
      : preprocessed(callbacks, prepared, reader);
  } catch (cause) {
    throw tensorError(callbacks, cause);
  }
}

/** The constructor of tensors throws a plain Error when data from a caller has the wrong length. */
function tensorError({ name }: Callbacks, cause: unknown): unknown {
  return isError(cause) && /^Tensor's size\(\d+\) does not match data/.test(cause.message)
    ? new InvalidInputError(`Serving "${name}", preprocess: ${cause.message}`, { cause })
    : cause;
}

function preprocessed(
  callbacks: Callbacks,
  prepared: PreprocessResult | undefined,
  reader: RowReader,
): Call {
  if (typeof prepared !== 'object' || prepared === null || !('batch' in prepared)) {
    throw new InvalidServingError(
      `Serving "${callbacks.name}": preprocess must return { batch, info? }, it returned ` +
        formatValue(prepared),
    );
  }
  return callOf(callbacks, prepared.batch, prepared.info, reader);
}

function callOf(
  { name, preprocess: hook }: Callbacks,
  rows: unknown,
  info: unknown,
  reader: RowReader,
): Call {
  const source = sourceOf(rows);
  if (source && Array.isArray(rows)) {
    // All batches exist already, so we await nothing.
    const batches = rows.filter((row): row is Batch => row instanceof Batch).values();
    return { rows: batches, single: false, isOpen: false, info };
  }
  if (source) {
    const own = ownsValuesOf(rows) ? (value: unknown) => value : copyInput;
    return { rows: batchesOf(source, reader, own), single: false, isOpen: true, info };
  }
  if (isThenable(rows)) {
    const given = formatValue(rows);
    throw hook
      ? new InvalidServingError(
          `Serving "${name}": preprocess gave ${given} as its batch; await it`,
        )
      : new InvalidInputError(`Serving "${name}" was given ${given} as its input; await it`);
  }
  const batch = reader.read(rows);
  return {
    rows: batch ?? Batch.ofValue(rows),
    single: batch === undefined,
    isOpen: false,
    info,
  };
}

/** Copies pulled values, since the source may reuse its memory. */
function batchesOf(
  source: Source<unknown>,
  reader: RowReader,
  own: (value: unknown) => unknown,
): Source<Batch> {
  return {
    async next() {
      const { done, value } = resultIn(await source.next());
      if (done) {
        return { done, value: undefined };
      }
      const copy = own(value);
      return { done: false, value: reader.read(copy) ?? Batch.ofValue(copy) };
    },
    return: async () => (await source.return?.(undefined)) as IteratorReturnResult<undefined>,
  };
}

function resultIn(result: unknown): IteratorResult<unknown> {
  if (typeof result !== 'object' || result === null) {
    throw new InvalidBatchError(
      `A lazy sequence must give { done, value } for every step, it gave ${formatValue(result)}`,
    );
  }
  return result as IteratorResult<unknown>;
}

export class AnswerEnd implements ReplyEnd<unknown> {
  constructor(
    private readonly counters: Counters,
    private readonly ended: () => void,
    readonly single: boolean,
    readonly isLent = false,
  ) {}

  answer(output: BatchOutput): unknown {
    const answer = unwrap(this, withoutErrors(output));
    this.counters.answered++;
    this.ended();
    return answer;
  }

  failed(error: unknown, { signal }: ResolvedCallOptions): void {
    this.counters.ended({ error }, signal);
    this.ended();
  }
}

export interface CallOutput {
  readonly output: BatchOutput;
  readonly said: CallMetadata;
}

/** Ends calls that later steps count. */
export const outputEnd: ReplyEnd<CallOutput> = {
  isLent: false,
  answer: (output, said) => ({ output: withoutErrors(output), said }),
  failed: () => {},
};

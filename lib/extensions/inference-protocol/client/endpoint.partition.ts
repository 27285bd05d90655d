import type { Tensor } from 'onnxruntime-common';
import { type Batch, CallCancelledError, PartitionLostError } from '../../../index.js';
import {
  type BatchInfo,
  type BatchListener,
  type BatchTerms,
  NO_TERMS,
  NotStartedError,
  type PartitionResult,
  ServerBusyError,
  backoff,
  type Worker,
  type Loaded,
} from '../../../doors/engine.js';
import {
  inSteps,
  type RunStep,
  feedsOf,
  inputsAmong,
  ModelReply,
  type ModelSignature,
} from '../../../doors/models.js';
import { isA, messageOf } from '../../../doors/text.js';
import type { GrpcInferResponse } from '../wire/grpc-service.js';
import {
  isOwnMemory,
  MessageMemory,
  outputsOf,
  parametersOf,
  requestBytes,
  requestHead,
} from './infer-messages.js';
import { type EndpointConnection, READY_TIMEOUT } from './endpoint-connection.js';
import { batchErrorOf, EndpointFailure } from './endpoint-errors.js';
import type { RemoteModel } from './endpoint-rules.js';

/** Milliseconds after the deadline: callers' timers cancel first. */
const GRACE = 100;

/** Milliseconds. */
const LONGEST_PAUSE = 1_000;

/**
 * Sends one batch at a time. Busy answers cause a pause, longer with each in a row, until the
 * server reports ready; otherwise the connection is lost.
 */
export class EndpointPartition implements Worker {
  readonly prefetch = 0;
  unavailable: Error | undefined;
  readonly ended: Promise<Error>;
  readonly loaded: Loaded;
  private readonly reply: ModelReply;
  private running: { readonly call: AbortController; readonly end: Promise<unknown> } | undefined;
  private isClosed = false;
  private busy = 0;
  private timer: NodeJS.Timeout | undefined;
  private changed: (() => void) | undefined;
  private readonly closing = new AbortController();
  private readonly memory = new MessageMemory();

  constructor(
    private readonly connection: EndpointConnection,
    readonly url: string,
    private readonly model: RemoteModel,
    private readonly signature: ModelSignature,
    /** Longest first pause in milliseconds. */
    private readonly pause: number,
  ) {
    this.loaded = { signature, providers: { inUse: url, missing: [] } };
    this.reply = new ModelReply(signature);
    this.ended = connection.ended;
    void this.ended.then(() => this.close());
  }

  async run(batch: Batch, { hooks }: BatchInfo, listener: BatchListener): Promise<PartitionResult> {
    const { connection, reply } = this;
    if (connection.lost) {
      throw new NotStartedError(connection.lost.message, { cause: connection.lost });
    }
    const names = hooks.length === 0 ? reply.names : [...new Set([...reply.names, ...hooks])];
    const call = new AbortController();
    const end = this.send(batch, names, listener.terms?.() ?? NO_TERMS, call.signal);
    const running = (this.running = { call, end });
    let isOver = false;
    // Callers also leave when answered; an abort would only cost an error.
    listener.onLeft?.(() => isOver || call.abort());
    try {
      const outputs = await end;
      this.busy = 0;
      hooks.forEach((hook) => listener.hook(hook, outputs[hook]));
      const tensors = reply.names.map((name) => outputs[name]!);
      return { output: reply.of(tensors), own: isOwnMemory(tensors) };
    } finally {
      isOver = true;
      this.running = this.running === running ? undefined : this.running;
    }
  }

  onChange(listener: () => void): void {
    this.changed = listener;
  }

  /** Loses the connection: the server must report ready again. */
  readonly kill = (): void => {
    this.running?.call.abort();
    this.connection.lose(new PartitionLostError(`A batch of the endpoint ${this.url} was ended`));
  };

  halt(): void {
    this.running?.call.abort();
    void this.close();
  }

  async close(): Promise<void> {
    if (!this.isClosed) {
      this.isClosed = true;
      clearTimeout(this.timer);
      this.closing.abort();
      await this.running?.end.catch(() => {});
      this.connection.release();
    }
  }

  private send(
    batch: Batch,
    names: readonly string[],
    terms: BatchTerms,
    signal: AbortSignal,
  ): ReturnType<RunStep> {
    const { signature } = this;
    let hasRun = false;
    const run: RunStep = async (rows, outputs) => {
      const answer = await this.infer(rows, outputs, terms, signal, hasRun);
      hasRun = true;
      return answer;
    };
    return signature.fixedBatch === undefined
      ? run(batch, names)
      : inSteps(
          run,
          signature,
          signature.fixedBatch,
        )(feedsOf(batch.gather(), signature.inputs), names);
  }

  private async infer(
    rows: Batch,
    names: readonly string[],
    terms: BatchTerms,
    signal: AbortSignal,
    /** True if a step of the batch has run. */
    hasRun: boolean,
  ): Promise<Record<string, Tensor>> {
    const { connection, model, signature, url } = this;
    const feeds = inputsAmong(rows.leafRows(), signature.inputs);
    const head = requestHead(model, signature.inputs, feeds, names, parametersOf(terms));
    const request = requestBytes(connection.encode('ModelInfer', head), feeds, (length) =>
      this.memory.take(length),
    );
    const left = terms.deadline - performance.now() + GRACE;
    const deadline = left < Infinity ? new Date(Date.now() + left) : undefined;
    try {
      const answer = await connection.send<GrpcInferResponse>('ModelInfer', request, {
        deadline,
        signal,
      });
      // gRPC copied the message before sending; a failed call may not have.
      this.memory.give(request);
      return outputsOf(answer, names, signature, url);
    } catch (cause) {
      if (!isA(cause, EndpointFailure)) {
        throw cause;
      }
      if (signal.aborted) {
        throw new CallCancelledError('No caller waits for the batch any more', { cause });
      }
      const error = batchErrorOf(cause, hasRun);
      if (isA(error, ServerBusyError)) {
        this.paused(error);
      } else if (isA(error, PartitionLostError)) {
        connection.lose(error);
      }
      throw error;
    }
  }

  private paused(cause: ServerBusyError): void {
    if (this.unavailable || this.isClosed) {
      return;
    }
    const limit = backoff(this.pause, ++this.busy, Math.random);
    this.unavailable = new NotStartedError(
      `The endpoint ${this.url} is busy, and gets the next batch after a pause: ${cause.message}`,
      { cause, retryAfter: 1 },
    );
    this.timer = setTimeout(() => void this.resume(), Math.min(LONGEST_PAUSE, limit));
    this.changed?.();
  }

  private async resume(): Promise<void> {
    const { connection, model } = this;
    try {
      const deadline = new Date(Date.now() + READY_TIMEOUT);
      await connection.ready(model, { signal: this.closing.signal, deadline });
      this.unavailable = undefined;
      this.changed?.();
    } catch (cause) {
      const facts = `The endpoint ${this.url} was busy, and does not state that it is ready`;
      connection.lose(new PartitionLostError(`${facts}: ${messageOf(cause)}`, { cause }));
    }
  }
}

/** Replaces a server that is down; its supervisor retries. */
export class AbsentWorker implements Worker {
  readonly prefetch = 0;
  readonly ended: Promise<Error>;

  constructor(private readonly reason: Error) {
    this.ended = Promise.resolve(reason);
  }

  readonly kill = (): void => {};

  async run(): Promise<never> {
    throw new NotStartedError(messageOf(this.reason), { cause: this.reason });
  }

  async close(): Promise<void> {}
}

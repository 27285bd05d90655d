import type { Tensor } from 'onnxruntime-common';
import type { Batch } from '../../batch/batch.js';
import { CallCancelledError, isA, PartitionLostError } from '../../errors.js';
import type { GrpcInferResponse } from '../../protocol/grpc-messages.js';
import {
  type BatchInfo,
  type BatchListener,
  type BatchTerms,
  NO_TERMS,
} from '../batch-function.js';
import { inSteps, type RunSession } from '../onnx/fixed-batch.js';
import { feedsOf, ModelReply } from '../onnx/model-ports.js';
import type { ModelSignature } from '../onnx/model-signature.js';
import { NotStartedError, type PartitionResult } from '../partition.js';
import type { Worker } from '../worker/supervised.partition.js';
import type { Loaded } from '../worker/worker-protocol.js';
import type { EndpointConnection } from './endpoint-connection.js';
import { batchErrorOf, EndpointFailure } from './endpoint-errors.js';
import type { RemoteModel } from './endpoint-options.js';
import { isOwnMemory, outputsOf, parametersOf, requestOf } from './infer-messages.js';

/** Milliseconds after the deadline of the callers, whose own timers cancel the call before. */
const GRACE = 100;

/** Sends one batch at a time to an endpoint. */
export class EndpointPartition implements Worker {
  readonly prefetch = 0;
  readonly ended: Promise<Error>;
  readonly loaded: Loaded;
  private readonly reply: ModelReply;
  private running: { readonly call: AbortController; readonly end: Promise<unknown> } | undefined;
  private isClosed = false;

  /** The connection is acquired for it. */
  constructor(
    private readonly connection: EndpointConnection,
    private readonly url: string,
    private readonly model: RemoteModel,
    private readonly signature: ModelSignature,
  ) {
    this.loaded = { signature, providers: { inUse: url, missing: [] } };
    this.reply = new ModelReply(signature);
    this.ended = connection.ended;
    void this.ended.then(() => this.close());
  }

  async run(batch: Batch, { hooks }: BatchInfo, listener: BatchListener): Promise<PartitionResult> {
    const { connection, reply, signature } = this;
    if (connection.lost) {
      throw new NotStartedError(connection.lost.message, { cause: connection.lost });
    }
    const feeds = feedsOf(batch.gather(), signature.inputs);
    const names = hooks.length === 0 ? reply.names : [...new Set([...reply.names, ...hooks])];
    const call = new AbortController();
    listener.onLeft?.(() => call.abort());
    const end = this.send(feeds, names, listener.terms?.() ?? NO_TERMS, call.signal);
    const running = (this.running = { call, end });
    try {
      const outputs = await end;
      hooks.forEach((hook) => listener.hook(hook, outputs[hook]));
      const tensors = reply.names.map((name) => outputs[name]!);
      return { output: reply.of(tensors), own: isOwnMemory(tensors) };
    } finally {
      this.running = this.running === running ? undefined : this.running;
    }
  }

  /** Cancels the batch. The server must state again that it is ready before it gets another. */
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
      await this.running?.end.catch(() => {});
      this.connection.release();
    }
  }

  private send(
    feeds: readonly Tensor[],
    names: readonly string[],
    terms: BatchTerms,
    signal: AbortSignal,
  ): ReturnType<RunSession> {
    const { fixedBatch } = this.signature;
    const run: RunSession = (rows, outputs) => this.infer(rows, outputs, terms, signal);
    return (fixedBatch === undefined ? run : inSteps(run, this.signature, fixedBatch))(
      feeds,
      names,
    );
  }

  private async infer(
    feeds: readonly Tensor[],
    names: readonly string[],
    terms: BatchTerms,
    signal: AbortSignal,
  ): Promise<Record<string, Tensor>> {
    const { connection, model, signature, url } = this;
    const request = requestOf(model, signature.inputs, feeds, names, parametersOf(terms));
    const left = terms.deadline - performance.now() + GRACE;
    const deadline = left < Infinity ? new Date(Date.now() + left) : undefined;
    try {
      const answer = await connection.call<GrpcInferResponse>('ModelInfer', request, {
        deadline,
        signal,
      });
      return outputsOf(answer, names, signature, url);
    } catch (cause) {
      if (!isA(cause, EndpointFailure)) {
        throw cause;
      }
      if (signal.aborted) {
        throw new CallCancelledError('No caller waits for the batch any more', { cause });
      }
      const error = batchErrorOf(cause);
      if (isA(error, PartitionLostError)) {
        connection.lose(error);
      }
      throw error;
    }
  }
}

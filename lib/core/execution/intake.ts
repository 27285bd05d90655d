import type { Batch } from '../batch/batch.js';
import type { Template } from '../batch/template.js';
import type { Batcher } from '../batching/batcher.js';
import { currentOrigin, type Origin } from '../context/caller-context.js';
import type { StreamOptions } from '../context/call-options.js';
import type { ResolvedServing, Callbacks } from '../definition/resolved-serving.js';
import type { CallRecorder } from '../events/call-recorder.js';
import type { ModelSignature } from '../partitions/onnx/model-signature.js';
import { largestBatch, type Lanes, type ServingLane } from './lanes.js';
import { type Reply, type ReplyEnd, ReplyRequest } from './reply-request.js';
import type { BatchRequest } from './request.js';
import { checkWholeCost, rowCostsOf } from './row-costs.js';
import type { RowLengths } from './row-lengths.js';
import type { InternalCallOptions, ResolvedCallOptions } from './resolved-call-options.js';
import { StreamRequest } from './stream-request.js';
import {
  checkHooks,
  checkSize,
  checkStep,
  checkStrings,
  checkTemplate,
  costOf,
  validateBatch,
} from './validate-batch.js';

/** What the steps of one call share. */
export interface CallContext {
  readonly options: StreamOptions<string> & InternalCallOptions;
  readonly resolved: ResolvedCallOptions;
  readonly recorder: CallRecorder | undefined;
  /** Called when rows of the call were admitted. */
  readonly onAdmitted?: () => void;
}

/** Where the caller's half of a call hands its rows to the shared half: checked, and queued. */
export class Intake {
  /** The template of the last rows that fitted: most often that of the next. */
  private checked: Template | undefined;
  /** It is a model with an input of strings. */
  private readonly takesStrings: boolean;

  constructor(
    private readonly options: ResolvedServing,
    private readonly callbacks: Callbacks,
    private readonly lanes: Lanes,
    private readonly signature: ModelSignature | undefined,
    private readonly batcher: Batcher<BatchRequest>,
    private readonly isInline: boolean,
    /** In a serving whose rows differ in length. */
    private readonly lengths?: RowLengths,
  ) {
    const inputs = options.runner === 'model' ? (signature?.inputs ?? []) : [];
    this.takesStrings = inputs.some(({ type }) => type === 'string');
  }

  /** The reply to the rows, or the answer that `end` makes of it; rejects on cancellation. */
  reply<Answer = Reply>(
    batch: Batch,
    context: CallContext,
    end?: ReplyEnd<Answer>,
  ): Promise<Answer> {
    const request = this.replyRequest(batch, context, costOf(this.callbacks, batch), end);
    request.session = context.options.session;
    request.failWhenCancelled();
    if (!request.isOver) {
      this.submit(request, context);
      request.replyTurn = request.lane.replies?.join();
    }
    return request.reply;
  }

  /** A queued piece of a call whose reply is collected. */
  replyPiece(batch: Batch, context: CallContext, cost: number): ReplyRequest {
    const request = this.replyRequest(batch, context, cost);
    // The pieces are awaited in order: until its turn, nothing handles a rejection.
    request.reply.catch(() => {});
    return this.submit(request, context);
  }

  /** A queued piece of a call whose output is streamed. */
  streamPiece(batch: Batch, context: CallContext, cost: number): StreamRequest {
    const { options, resolved, recorder } = context;
    const { rows, lane } = this.admit(batch, context);
    const hooks = requestedHooks(options);
    return this.submit(new StreamRequest(rows, lane, recorder, hooks, resolved, cost), context);
  }

  /** The rows and their lane, if they fit the serving. */
  admit(
    batch: Batch,
    { options, recorder }: Pick<CallContext, 'options' | 'recorder'>,
  ): { readonly rows: Batch; readonly lane: ServingLane } {
    const { lanes, isInline, signature, lengths } = this;
    const { name, queue, template } = this.options;
    checkSize(this.options, batch);
    if (options.session) {
      checkStep(name, batch);
    }
    const keys = isInline ? undefined : lanes.keys;
    validateBatch(name, batch, lanes.optionsOf(batch.key), keys);
    if (!batch.template || batch.template !== this.checked) {
      checkTemplate(name, batch, signature, template);
      this.checked = batch.template;
    }
    if (this.takesStrings) {
      checkStrings(name, batch);
    }
    const origin = this.originOf(options);
    // After the checks: a refused batch leaves no lane behind.
    const rows = lengths ? lengths.vary(batch) : batch;
    const lane = isInline
      ? lanes.inlineLaneOf(rows, queue.maxRowsPerCall, origin)
      : lanes.laneOf(rows, origin, options.group);
    const hooks = requestedHooks(options);
    if (hooks) {
      // The rows of a sequence run apart.
      const most = lane.limits.places === undefined ? largestBatch(lane.limits, isInline) : 1;
      checkHooks(name, batch, hooks, most, signature);
      lengths?.checkHooks(hooks);
    }
    recorder?.queued(batch.size);
    return { rows, lane };
  }

  /** The origin of the call, in a serving that separates origins. */
  originOf({ origin }: StreamOptions<string>): Origin | undefined {
    return this.options.queue.separateOrigins ? (origin ?? currentOrigin()) : undefined;
  }

  private replyRequest<Answer = Reply>(
    batch: Batch,
    context: CallContext,
    cost: number,
    end?: ReplyEnd<Answer>,
  ): ReplyRequest<Answer> {
    const { rows, lane } = this.admit(batch, context);
    return new ReplyRequest(rows, lane, context.recorder, context.resolved, cost, end);
  }

  private submit<Request extends BatchRequest>(
    request: Request,
    { onAdmitted }: CallContext,
  ): Request {
    try {
      this.setCosts(request);
      this.batcher.submit(request);
    } catch (error) {
      request.end();
      throw error;
    }
    onAdmitted?.();
    return request;
  }

  private setCosts(request: BatchRequest): void {
    const { name, batchCost } = this.options;
    if (batchCost) {
      request.rowCosts = rowCostsOf(name, batchCost, request.batch);
      if (request.whole) {
        checkWholeCost(name, batchCost, request.rowCosts);
      }
    }
  }
}

/** The hooks that a call asks for, or undefined. */
export function requestedHooks({ hooks }: StreamOptions<string>): readonly string[] | undefined {
  return hooks?.length ? hooks : undefined;
}

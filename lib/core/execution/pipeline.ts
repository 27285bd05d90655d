import { Batch } from '../batch/batch.js';
import type { AdmissionPolicy, LatencyTarget } from '../batching/admission.js';
import { callingBatch } from '../context/call-cycles.js';
import { Batcher } from '../batching/batcher.js';
import { onAbort } from '../context/call-context.js';
import type { ResolvedServing, Callbacks } from '../definition/resolved-serving.js';
import { signatureFor } from '../definition/serving-signature.js';
import { CallRecorder, countEnd, countRefusal } from '../events/call-recorder.js';
import type { EventHub } from '../events/event-hub.js';
import type { CallMode } from '../events/serving-event.js';
import {
  AnswerEnd,
  type CallOutput,
  outputEnd,
  type Call,
  CallerSide,
  dropCall,
} from './caller-side.js';
import { BatchRunner } from './batch-run.js';
import type { CallSharing, SharedCall } from './call-sharing.js';
import { closedError } from '../errors.js';
import { type CallContext, Intake, ownHooks } from './intake.js';
import type { Lanes } from './lanes.js';
import { type BatchRequest, releaseOutput, type Reply } from './request.js';
import { Pieces } from './pieces.js';
import { type RowLengths, rowLengthsOf } from './row-lengths.js';
import { INTERNAL, onCancel, resolveCallOptions } from './resolved-call-options.js';
import { eventsOf } from './stream-request.js';
import { RowCheck, type RowFindings } from './row-check.js';
import { examplesOf, type WarmedUp, warmUp } from './warm-up.js';
import { closeEngine, type OpenedEngine } from '../partitions/engine.js';
import { axesOf, type ServingSignature } from '../partitions/model/model-signature.js';
import { type PartitionStatus, statusOf } from '../partitions/partition.js';
import { Pulls } from '../streaming/pull-ahead.js';
import type { Closable, Rung } from './shutdown.js';

/**
 * A call's path from its input to its reply:
 *
 *     caller.prepare -> | intake -> batcher -> runner -> partition | -> caller.finish
 *                       |          shared with other calls         |
 *
 * `batchedRun` calls share batches. Each `run` call is alone in its batches, which wait for no
 * rows.
 */
export class Pipeline implements Closable {
  readonly signature: ServingSignature | undefined;
  readonly where: string | undefined;
  private readonly caller: CallerSide;
  private readonly intake: Intake;
  private readonly pieces: Pieces;
  private readonly pulls = new Pulls();
  private readonly batcher: Batcher<BatchRequest>;
  private readonly runner: BatchRunner;
  private readonly lengths: RowLengths | undefined;
  /** A stream leaves when only reading is left. */
  private calls = 0;
  onIdle: (() => void) | undefined;
  private isClosed = false;
  private closing: Promise<void> | undefined;
  private readonly shared: CallSharing | undefined;
  private readonly ends: Readonly<Record<'single' | 'list' | 'lent', AnswerEnd>>;

  constructor(
    private readonly options: ResolvedServing,
    private readonly callbacks: Callbacks,
    private readonly lanes: Lanes,
    private readonly opened: OpenedEngine,
    private readonly events: EventHub,
    { shared, admission }: PipelineParts = {},
  ) {
    this.shared = shared;
    const { name, queue } = options;
    const { signature, partitions, fetched } = opened;
    const lengths = rowLengthsOf(options, signature);
    this.lengths = lengths;
    this.runner = new BatchRunner(name, options.recovery, opened, events, lengths);
    const hasTargets = [...options.keys.values()].some((key) => key.latencyTarget !== undefined);
    this.batcher = new Batcher({
      name,
      ...queue,
      costsAsWhole: callbacks.queue?.cost !== undefined,
      budget: options.batchCost,
      hasTargets,
      policies: admission,
      targets: partitions,
      isDivided: options.states !== undefined,
      runs: this.runner,
    });
    this.intake = new Intake(options, callbacks, lanes, signature, this.batcher, lengths);
    this.signature = signatureFor(options, signature);
    this.where = opened.where;
    const inputAxes = axesOf(signature?.inputs ?? []);
    this.caller = new CallerSide(callbacks, inputAxes, this.signature, fetched?.facts);
    const { counters } = events;
    this.ends = {
      single: new AnswerEnd(counters, this.leave, true),
      list: new AnswerEnd(counters, this.leave, false),
      lent: new AnswerEnd(counters, this.leave, false, true),
    };
    const { intake, pulls } = this;
    this.pieces = new Pieces({ options, callbacks, lanes, partitions, intake, pulls });
  }

  run(input: unknown, options: CallContext['options'], isAlone = false): Promise<unknown> {
    const recorder = this.recorderOf(options, isAlone ? 'inline' : 'batched');
    let context: CallContext | undefined;
    this.calls++;
    try {
      context = this.enter(input, options, recorder, isAlone);
      const isShared = this.shared !== undefined && !isAlone;
      const call = isShared ? undefined : this.prepare(input, context);
      const isDirect = call && !(call instanceof Promise) && !recorder;
      if (isDirect && !this.callbacks.postprocess && call.rows instanceof Batch) {
        // Nothing runs between the output and the answer: one promise for the whole call.
        return this.intake.reply(call.rows, context, this.endOf(call, options));
      }
      return this.runInSteps(input, call, context);
    } catch (error) {
      context?.leavePlace?.();
      countEnd(this.events, recorder, { error }, options.signal);
      this.leave();
      return Promise.reject(error);
    }
  }

  /** @throws ServingClosedError */
  refuseOnceClosed(): void {
    if (this.isClosed) {
      throw closedError(this.options.name);
    }
  }

  refused(error: unknown, { signal }: CallContext['options']): void {
    countRefusal(this.events, this.options.name, 'batched', error, signal);
  }

  /** Runs calls that are asynchronous, observed, or have own code. */
  private async runInSteps(
    input: unknown,
    prepared: Call | Promise<Call> | undefined,
    context: CallContext,
  ): Promise<unknown> {
    const { caller, events } = this;
    const { options, recorder, resolved } = context;
    try {
      if (!prepared) {
        const { answer, ...source } = await this.shared!.answer(this.sharedCall(input, context));
        events.counters.answered++;
        recorder?.ended(source);
        return answer;
      }
      // Each await costs a microtask, so we await only what is asynchronous.
      const call = prepared instanceof Promise ? await prepared : prepared;
      const { output, said } = await this.outputOf(call, context);
      recorder?.answered();
      const finished = caller.finish(call, output, said, resolved);
      const answer = finished instanceof Promise ? await finished : finished;
      events.counters.answered++;
      recorder?.ended();
      return answer;
    } catch (error) {
      countEnd(events, recorder, { error }, options.signal);
      throw error;
    } finally {
      context.leavePlace?.();
      this.leave();
    }
  }

  /** @param left aborts when the consumer has left */
  async *stream(
    input: unknown,
    options: CallContext['options'],
    left: AbortSignal,
  ): AsyncGenerator<unknown, undefined> {
    const { caller, events, pulls } = this;
    const recorder = this.recorderOf(options, 'stream');
    let failure: { readonly error: unknown } | undefined;
    let context: CallContext | undefined;
    let isIn = true;
    const leave = (): void => {
      if (isIn) {
        isIn = false;
        this.leave();
      }
    };
    const ended = (): void => {
      context?.leavePlace?.();
      countEnd(events, recorder, failure, options.signal);
      leave();
    };
    this.calls++;
    try {
      const own = { ...options, hooks: ownHooks(this.options.name, options.hooks) };
      context = this.enter(input, own, recorder, own.inline, true);
      const { resolved } = context;
      const call = await this.prepare(input, context, left);
      const pieces = this.pieces.stream(call, context, leave);
      pieces.onStop(onAbort(left, () => pulls.end(pieces)));
      pieces.onStop(onCancel(resolved, (error) => pulls.end(pieces, { error })));
      try {
        yield* caller.finishStream(call, eventsOf(call, pulls.readerOf(pieces, ended)), resolved);
      } finally {
        // Needed if `postprocessStream` has read no event.
        pulls.end(pieces);
      }
    } catch (error) {
      // A consumer that leaves early is not an error.
      failure = left.aborted ? undefined : { error };
      throw error;
    } finally {
      ended();
    }
    return undefined;
  }

  examplesOf(inputs: readonly unknown[]): Promise<readonly Batch[]> {
    return examplesOf(inputs, this.caller, this.intake);
  }

  /** @throws InvalidServingError if a row's answer depends on other rows, or on padding */
  async checkRows(examples: readonly Batch[]): Promise<RowFindings> {
    const { options, opened, runner, intake } = this;
    const { signature } = opened;
    if (options.runner !== 'model' || !signature) {
      return {};
    }
    const declares = opened.fetched?.accept === undefined;
    const check = new RowCheck(options, signature, runner, intake, declares);
    return check.run(examples);
  }

  obey({ alone, apart }: RowFindings): void {
    const { signature } = this.opened;
    if (alone !== undefined && signature) {
      this.lanes.fit({ ...signature, mostRows: 1 });
    }
    if (apart !== undefined) {
      this.lengths?.keepApart();
    }
  }

  warmUp(examples: readonly Batch[]): Promise<WarmedUp> {
    const { options, opened, lanes, runner, intake, batcher } = this;
    return warmUp({ options, examples, opened, lanes, runner, intake, batcher });
  }

  /** Ignores streams whose output hasn't been read yet. */
  get isIdle(): boolean {
    return this.calls === 0;
  }

  drain(): void {
    this.batcher.drain();
  }

  close(): Promise<void> {
    return (this.closing ??= this.endStages());
  }

  stop(rung: Rung, error: Error): boolean {
    const { caller, pulls, runner, batcher, opened } = this;
    const hadCalls = this.calls + pulls.size > 0;
    this.isClosed = true;
    if (rung === 'abandon') {
      pulls.finishAll(error);
      batcher.abandon(error);
      return hadCalls;
    }
    runner.terminate(error);
    caller.preparing.end(error);
    caller.finishing.end(error);
    pulls.endAll(error);
    const hadBatches = batcher.end(error);
    for (const partition of opened.partitions) {
      if (rung === 'halt' || partition.kill) {
        partition.halt?.();
      } else {
        partition.terminate?.();
      }
    }
    return hadCalls || hadBatches;
  }

  unfinished(): readonly string[] {
    return this.batcher.unfinished();
  }

  pause(isPaused: boolean): void {
    this.batcher.pause(isPaused);
  }

  forget(id: number, partition: number): void {
    this.opened.partitions[partition]!.forget?.([id]);
  }

  get depth(): number {
    return this.batcher.depth;
  }

  get targets(): readonly TargetStatus[] {
    return this.lanes.keys.flatMap((key) => {
      const target = this.batcher.targetOf(this.lanes.optionsOf(key));
      return target ? { key, ...target } : [];
    });
  }

  get partitions(): readonly PartitionStatus[] {
    const { fault } = this.runner;
    const statuses = this.opened.partitions.map(statusOf);
    return fault
      ? statuses.map((status) => ({ ...status, state: 'lost' as const, reason: fault.message }))
      : statuses;
  }

  private readonly leave = (): void => {
    if (--this.calls === 0) {
      this.onIdle?.();
    }
  };

  /** Ends the stages in a call's order. */
  private async endStages(): Promise<void> {
    const { shared, caller, pulls, batcher, opened } = this;
    this.isClosed = true;
    this.drain();
    await shared?.idle();
    await caller.preparing.idle();
    await pulls.close(closedError(this.options.name));
    await batcher.close();
    await Promise.all([caller.finishing.idle(), closeEngine(opened)]);
  }

  private recorderOf(options: CallContext['options'], mode: CallMode): CallRecorder | undefined {
    const recorder = options[INTERNAL]?.recorder;
    return !recorder && this.events.observesCalls
      ? CallRecorder.start(this.events, this.options.name, mode, options.signal)
      : recorder;
  }

  private enter(
    input: unknown,
    options: CallContext['options'],
    recorder: CallRecorder | undefined,
    isAlone?: boolean,
    isStream = false,
  ): CallContext {
    this.refuseOnceClosed();
    const timeout = isStream ? undefined : this.options.timeout;
    const own = options[INTERNAL];
    const resolved =
      own?.resolved ?? resolveCallOptions(this.callbacks, input, options, timeout, isStream);
    options.signal?.throwIfAborted();
    const { name, states } = this.options;
    if (states && !own?.turn) {
      throw states.outside(name);
    }
    return { options, resolved, recorder, isAlone, caller: callingBatch() };
  }

  /**
   * A call counts as one queued row while `preprocess` works for it.
   *
   * @throws OverloadedError, before the work, if the queue has no room for a row
   */
  private prepare(input: unknown, context: CallContext, left?: AbortSignal): Call | Promise<Call> {
    const { batcher, callbacks, caller } = this;
    const { resolved } = context;
    if (callbacks.preprocess) {
      context.leavePlace = batcher.reserve(resolved);
    }
    return caller.prepare(input, resolved, left);
  }

  private outputOf(call: Call, context: CallContext): Promise<CallOutput> {
    const { rows } = call;
    const turn = context.options[INTERNAL]?.turn;
    if (turn && !(rows instanceof Batch)) {
      dropCall(call);
      turn.check();
    }
    return rows instanceof Batch
      ? this.intake.reply(rows, context, outputEnd)
      : this.pieces
          .reply(call, rows, context)
          .then((reply) => ({ output: releaseOutput(reply.rows), said: reply }));
  }

  private endOf({ single }: Call, { [INTERNAL]: own }: CallContext['options']): AnswerEnd {
    return single ? this.ends.single : own?.zeroCopy ? this.ends.lent : this.ends.list;
  }

  private replyOf(call: Call, context: CallContext): Promise<Reply> {
    const { rows } = call;
    return rows instanceof Batch
      ? this.intake.reply(rows, context)
      : this.pieces.reply(call, rows, context);
  }

  private async prepareInfo(input: unknown, context: CallContext): Promise<Call> {
    const own = { ...context };
    try {
      const call = await this.prepare(input, own);
      dropCall(call);
      return call;
    } finally {
      own.leavePlace?.();
    }
  }

  /** The calls share only the rows. */
  private sharedCall(input: unknown, context: CallContext): SharedCall {
    const { caller, intake, callbacks } = this;
    const { options, resolved, recorder } = context;
    const { preprocess, postprocess } = callbacks;
    return {
      input,
      origin: intake.originOf(options),
      key: resolved.key,
      terms: `${resolved.priority} ${resolved.tenant}`,
      due: resolved,
      onStop: (leave) => onCancel(resolved, leave),
      recorder,
      caller: context.caller,
      prepare: preprocess && postprocess && (() => this.prepareInfo(input, context)),
      run: async (own, signal, shared, onAdmitted) => {
        const run: CallContext = {
          ...context,
          resolved: { ...resolved, signal, deadline: Infinity, shared },
          onAdmitted,
        };
        try {
          const call = await this.prepare(own, run);
          return { call, reply: await this.replyOf(call, run) };
        } finally {
          run.leavePlace?.();
        }
      },
      finish: (call, output, metadata) => caller.finish(call, output, metadata, resolved),
    };
  }
}

export interface PipelineParts {
  readonly shared?: CallSharing | undefined;
  readonly admission?: readonly AdmissionPolicy[];
}

/** A key's latency target, and the resulting batches. */
export interface TargetStatus extends LatencyTarget {
  /** The key's name. */
  readonly key: string;
}

import { Batch } from '../batch/batch.js';
import { rowsIn, unusable } from '../batch/container.js';
import { type BatchAxes, axisOf, type Template } from '../batch/template.js';
import type { BatchOutcome, BatchRecord, BatchRuns } from '../batching/batcher.js';
import { CallingBatch } from '../context/call-cycles.js';
import { type Part, sizeOf } from '../batching/queued-request.js';
import type { Window } from '../batching/ready-queue.js';
import { inOriginOf } from '../context/call-context.js';
import type { RetryOptions } from '../definition/resolved-serving.js';
import {
  BatchFailedError,
  hasRun,
  InvalidBatchError,
  InvalidOutputError,
  isA,
  isError,
  isServingError,
  messageOf,
  PartitionLostError,
  RunTimeoutError,
  type ServingError,
  noteRun,
} from '../errors.js';
import type { EventHub } from '../events/event-hub.js';
import {
  batchEnd,
  type BatchLabels,
  batchStart,
  type ServingEvent,
} from '../events/serving-event.js';
import { countOf, countOfRows, formatList, returnedType } from '../format.js';
import { log } from '../log.js';
import {
  type BatchInfo,
  type BatchListener,
  type BatchTerms,
  NO_TERMS,
} from '../partitions/batch-function.js';
import type { OpenedEngine } from '../partitions/engine.js';
import { axesOf } from '../partitions/model/model-signature.js';
import {
  type Partition,
  type PartitionResult,
  RejectedRowsError,
  REPORT,
  ReplyTooLargeError,
  RevokedError,
  STEPPED,
  isPartitionRefusal,
} from '../partitions/partition.js';
import { type StateRows, turnsOf } from '../partitions/row-states.js';
import { paddingOf } from './lanes.js';
import { type BatchRequest, type Reply, type ReplyRequest, type RunOutput } from './request.js';
import { type RetryState, retriesFor } from './retry-policy.js';
import type { RowLengths } from './row-lengths.js';

type Parts = readonly Part<BatchRequest>[];

export class BatchRunner implements BatchRuns<BatchRequest> {
  readonly outputs: OutputReader;
  /** True if rows join running ones. */
  readonly isContinuous: boolean;
  private readonly callers = new Map<number, CallingBatch>();
  private readonly reports: string | undefined;
  cut: Error | undefined;
  fault: Error | undefined;

  constructor(
    private readonly name: string,
    readonly retryOptions: RetryOptions,
    private readonly opened: OpenedEngine,
    private readonly events: EventHub,
    readonly lengths?: RowLengths,
  ) {
    this.outputs = new OutputReader(axesOf(opened.signature?.outputs ?? []));
    const [partition] = opened.partitions;
    this.isContinuous = partition?.capacity !== undefined;
    this.reports = partition?.reports;
  }

  nextBatch(): number {
    return this.events.nextBatch();
  }

  batchStarted(record: BatchRecord<BatchRequest>): void {
    const { events } = this;
    if (events.isObserved('batch:start')) {
      events.emit(batchStart(record, this.labelsOf(record)));
    }
  }

  dispatch(window: Window<BatchRequest>, index: number): Promise<BatchOutcome<BatchRequest>> {
    const { parts, size, retryState } = window;
    const partition = this.opened.partitions[index]!;
    return this.run(parts, size, partition, index, retryState as RetryState | undefined, window);
  }

  /** Rows that join each other run together, so their calls belong to their partition. */
  callerOn(partition: number): CallingBatch {
    const caller = this.callers.get(partition) ?? new CallingBatch(this.name);
    if (this.isContinuous) {
      this.callers.set(partition, caller);
    }
    return caller;
  }

  batchEnded(
    record: BatchRecord<BatchRequest>,
    runTime: number,
    outcome: BatchOutcome<BatchRequest>,
  ): void {
    const { events } = this;
    if (!outcome.revoked) {
      events.counters.ran(record.rows, outcome.padding ?? 0, outcome.error !== undefined);
    }
    if (events.isObserved('batch:end')) {
      events.emit(batchEnd(record, this.labelsOf(record), runTime, outcome));
    }
  }

  queueFailed(error: Error): void {
    this.fault = error;
    log.error(error.message);
  }

  get isReported(): boolean {
    return this.reports !== undefined && this.events.isObserved(this.reports);
  }

  report(record: object, key: string, partition: number): void {
    const { events, name, reports: type } = this;
    const { version } = events;
    events.emit({ type, serving: name, version, key, partition, ...record } as ServingEvent);
  }

  /** Drops the output. */
  async tryOut(request: BatchRequest, index: number, partition: Partition): Promise<unknown> {
    request.isOver = true;
    const { size } = request;
    const { error } = await this.run([{ request, offset: 0, count: size }], size, partition, index);
    return error;
  }

  /**
   * Runs the requests as one batch, invisible to queue and counters.
   *
   * @throws the batch's error
   */
  async runTogether(requests: readonly ReplyRequest[], index: number): Promise<readonly Reply[]> {
    const parts = requests.map((request) => ({ request, offset: 0, count: request.size }));
    const partition = this.opened.partitions[index]!;
    const replies = Promise.all(requests.map(({ reply }) => reply));
    replies.catch(() => {});
    const outcome = await this.run(parts, sizeOf(parts), partition, index);
    if (outcome.error !== undefined) {
      throw outcome.error;
    }
    outcome.handOut?.();
    return replies;
  }

  /**
   * Ends running generators at their next step. Batches lost with their partition fail with this
   * error.
   */
  terminate(error: Error): void {
    this.cut = error;
  }

  errorOf(cause: unknown, batch: Batch): unknown {
    if (this.cut && isA(cause, PartitionLostError)) {
      return this.cut;
    }
    if (isPartitionRefusal(cause)) {
      // A copy: where the rows of another serving called this one, rows have run.
      return this.named(cause);
    }
    if (this.opened.throwsAsIs) {
      return noteRun(cause);
    }
    // A subclass that the retry policy looks for.
    const isTooLarge: boolean = isA(cause, ReplyTooLargeError);
    if (isA(cause, InvalidOutputError) && !isTooLarge) {
      return this.named(cause, InvalidOutputError);
    }
    if (isA(cause, PartitionLostError) && !hasRun(cause)) {
      // The retry policy looks at its class.
      return this.named(cause);
    }
    return isServingError(cause)
      ? noteRun(cause)
      : this.failedBatch(cause, batch.size, batch.values);
  }

  /** Partitions don't have the serving's name. */
  named(error: Error, As = error.constructor as typeof ServingError): Error {
    if (!isServingError(error) || error.message.startsWith('Serving ')) {
      return error;
    }
    const { message, cause, retryAfter } = error;
    return new As(`Serving "${this.name}": ${message}`, {
      retryAfter,
      ...(cause !== undefined && { cause }),
    });
  }

  private run(
    parts: Parts,
    largest: number,
    partition: Partition,
    index: number,
    retryState?: RetryState,
    window?: Window<BatchRequest>,
  ): Promise<BatchOutcome<BatchRequest>> {
    let run: BatchRun;
    try {
      run = new BatchRun(parts, largest, this, window);
    } catch (cause) {
      const error = this.failedBatch(cause, sizeOf(parts));
      failParts(parts, error);
      return Promise.resolve({ error });
    }
    return run.on(partition, index, retryState);
  }

  private failedBatch(
    cause: unknown,
    size: number,
    values: readonly unknown[] = [],
  ): BatchFailedError {
    const hint =
      isError(cause) && cause.name === 'TypeError' && values.some(Array.isArray)
        ? '; a plain list is one row: give several rows as Batch.stack([...])'
        : '';
    return new BatchFailedError(
      `Serving "${this.name}": a batch of ${countOfRows(size)} failed: ${messageOf(cause)}${hint}`,
      { cause },
    );
  }

  private labelsOf({ parts }: BatchRecord<BatchRequest>): BatchLabels {
    const { key, origin } = parts[0]!.request.lane;
    const calls = parts.flatMap(({ request }) => request.watch?.calls ?? []);
    const { version } = this.events;
    return { serving: this.name, version, key, origin, calls: [...new Set(calls)] };
  }
}

export class BatchRun implements BatchListener, BatchOutcome<BatchRequest> {
  readonly batch: Batch;
  readonly hooks: readonly string[];
  error: unknown;
  revoked: true | undefined;
  steps: number | undefined;
  retries: BatchOutcome<BatchRequest>['retries'];
  private index = 0;
  private output: RunOutput | undefined;
  private failed: Parts | undefined;
  private longestRow: number | undefined;
  /** Requests that received this run's steps or hooks. */
  private received: Set<BatchRequest> | undefined;
  /** Made when first needed. */
  private rows: readonly { readonly request: BatchRequest; readonly index: number }[] | undefined;

  constructor(
    private readonly parts: Parts,
    /** Rows, padding included. */
    largest: number,
    private readonly runner: BatchRunner,
    /** Undefined outside a queue. */
    private readonly window?: Window<BatchRequest>,
  ) {
    const batches: Batch[] = [];
    const hooks = new Set<string>();
    for (const { request, offset, count } of parts) {
      batches.push(request.batch.slice(offset, offset + count));
      request.hooks?.forEach((hook) => hooks.add(hook));
    }
    // A warm-up has no callers, and its reports no events.
    if (runner.isContinuous && runner.isReported && !parts[0]!.request.isOver) {
      hooks.add(REPORT);
    }
    const batch = Batch.merge(batches);
    const padding = paddingOf(batch, parts[0]!.request.lane.limits, largest);
    this.batch = padding === batch.padding ? batch : batch.pad(padding);
    this.hooks = [...hooks];
    for (const { request } of parts) {
      request.watch?.running();
    }
  }

  get callsIfFull(): number {
    return this.window && this.batch.size >= this.window.size ? this.parts.length : 0;
  }

  get hasCallers(): boolean {
    return this.parts.some(({ request }) => !request.isOver);
  }

  caller(): CallingBatch | undefined {
    const { window, runner, index } = this;
    if (window && !window.caller) {
      window.caller = runner.callerOn(index);
      for (const { request } of this.parts) {
        if (request.stateTurn) {
          request.stateTurn.runner = window.caller;
        }
      }
    }
    return window?.caller;
  }

  async on(partition: Partition, index: number, retryState?: RetryState): Promise<this> {
    this.index = index;
    try {
      this.checkRows(partition);
      const run = () => partition.run(this.batch, this.info(), this);
      const result = await inOriginOf(this.parts[0]!.request.lane, run);
      this.output = result === STEPPED ? undefined : this.read(result);
    } catch (cause) {
      this.fail(cause, retryState);
    }
    return this;
  }

  get padding(): number {
    return this.batch.padding;
  }

  /**
   * Skips output that a generator has emitted. The output's memory may be gone by now: that fails
   * its callers, not the batcher.
   */
  handOut(): void {
    if (this.failed) {
      failParts(this.failed, this.error);
      return;
    }
    try {
      this.forEachPart((part, start) => this.answer(part, start));
    } catch (cause) {
      failParts(this.parts, this.runner.errorOf(cause, this.batch));
    }
  }

  private info(): BatchInfo {
    const { key, size, padding } = this.batch;
    return {
      key,
      size,
      padding,
      partition: this.index,
      origin: this.parts[0]!.request.lane.origin,
      hooks: this.hooks,
      turns: turnsIn(this.parts),
    };
  }

  private fail(cause: unknown, retryState: RetryState | undefined): void {
    const { parts, runner } = this;
    this.failed = [];
    if (isA(cause, RejectedRowsError)) {
      const faults = [...cause.faults].map(([row, each]) => [row, runner.named(each)] as const);
      const others = this.without(new Map(faults));
      this.error = faults[0]?.[1];
      this.retries = others.length > 0 ? [{ parts: others, retryState }] : undefined;
      return;
    }
    if (isA(cause, RevokedError)) {
      this.revoked = true;
      this.retries = [{ parts, retryState }];
      return;
    }
    const error = runner.errorOf(cause, this.batch);
    const again = parts.filter(
      ({ request, offset, count }) =>
        !this.received?.has(request) && (request.isOver || request.isWaitingFor(offset, count)),
    );
    const retries = runner.cut
      ? []
      : retriesFor(error, again, retryState, runner.retryOptions, sizeOf(parts));
    this.error = error;
    this.failed = parts;
    if (retries.length === 0) {
      return;
    }
    for (const { request, offset, count } of again) {
      request.restart(offset, count);
      request.overrun = error instanceof RunTimeoutError ? error : request.overrun;
    }
    this.retries = retries;
    this.failed = parts.filter((part) => !again.includes(part));
  }

  /**
   * @throws RejectedRowsError if rows' memory was transferred while they waited, or their state is
   * lost
   */
  private checkRows(partition: Partition): void {
    const faults = new Map<number, Error>();
    if (this.parts[0]!.request.stateTurn) {
      this.checkStates(partition, faults);
    }
    if (faults.size === 0 && this.parts.every(({ request }) => request.batch.isIntact)) {
      return;
    }
    this.forEachPart(({ request }, start) => {
      if (!request.batch.isIntact) {
        faults.set(
          start,
          new InvalidBatchError(
            'The memory of a tensor was transferred, or has shrunk, while its rows waited; leave ' +
              'it as it is until they have run',
          ),
        );
      }
    });
    throw new RejectedRowsError(faults);
  }

  private without(faults: ReadonlyMap<number, Error>): Part<BatchRequest>[] {
    const rejected = new Set<BatchRequest>();
    this.forEachPart(({ request }, start, end) => {
      for (let row = start; row < end; row++) {
        if (faults.has(row)) {
          rejected.add(request);
          request.fail(faults.get(row));
        }
      }
    });
    return this.parts.filter(({ request }) => !rejected.has(request));
  }

  hook(name: string, value: unknown, own = false): void {
    if (name === REPORT) {
      const [record] = value as [object];
      this.runner.report(record, this.batch.key, this.index);
      return;
    }
    const cuts = this.runner.lengths?.cutsOfHook(name);
    const rows = this.hookRows(name, value);
    this.checkLengths(rows, cuts);
    this.forEachPart(({ request }, start, end) => {
      if (request.hooks?.includes(name)) {
        (this.received ??= new Set()).add(request);
        const part = this.cutBack(request, rows.slice(start, end), cuts);
        request.hook(name, own ? part.release() : part.consume());
      }
    });
  }

  step(output: unknown, metadata: unknown): void {
    const expected = this.batch.size + this.batch.padding;
    this.steps = (this.steps ?? 0) + 1;
    if (!Array.isArray(output) || output.length !== expected) {
      throw new InvalidOutputError(
        `A generator must yield, step by step, a list with an entry for each of the ${expected} ` +
          `rows of its batch; it yielded ${formatList(output)}`,
      );
    }
    const { cut } = this.runner;
    if (cut) {
      failParts(this.parts, cut);
      return;
    }
    this.forEachPart(({ request, offset }, start, end) => {
      // Continuously batched rows never run again.
      if (request.readsSteps || this.runner.isContinuous) {
        (this.received ??= new Set()).add(request);
      }
      request.step(offset, output.slice(start, end), metadata);
    });
  }

  isWaiting(row: number): boolean {
    this.rows ??= this.parts.flatMap(({ request, offset, count }) =>
      Array.from({ length: count }, (_, i) => ({ request, index: offset + i })),
    );
    const owner = this.rows[row];
    return owner !== undefined && owner.request.isWaiting(owner.index);
  }

  terms(): BatchTerms {
    const waiting = this.parts.filter(({ request }) => !request.isOver);
    return waiting.length === 0
      ? NO_TERMS
      : waiting.reduce(
          ({ deadline, priority }, { request }) => ({
            deadline: Math.max(deadline, request.deadline),
            priority: Math.max(priority, request.priority),
          }),
          { deadline: 0, priority: -Infinity },
        );
  }

  onLeft(callback: () => void): void {
    const waiting = this.parts.filter(({ request }) => !request.isOver);
    let left = waiting.length;
    waiting.forEach(({ request }) => request.onEnd(() => --left === 0 && callback()));
  }

  /** @throws InvalidOutputError */
  private read({ output, own = false, metadata }: PartitionResult): RunOutput {
    const rows = this.runner.outputs.read(output, this.batch);
    if (this.runner.lengths) {
      this.checkLengths(rows);
    }
    return { rows, isOwn: own, metadata };
  }

  private answer({ request, offset, count }: Part<BatchRequest>, start: number): void {
    const { output } = this;
    if (!output) {
      request.endSteps(offset, count);
      return;
    }
    if (request.isOver) {
      return;
    }
    if (this.runner.lengths && this.isShorter(request)) {
      const rows = this.cutBack(request, output.rows.slice(start, start + count));
      request.takeRows(offset, { ...output, rows, isOwn: true }, 0, count);
    } else {
      request.takeRows(offset, output, start, start + count);
    }
  }

  private isShorter({ batch }: BatchRequest): boolean {
    const { lengths } = this.runner;
    return lengths !== undefined && lengths.lengthOf(batch) !== this.longest();
  }

  private checkLengths(rows: Batch, cuts?: Readonly<Record<string, number>>): void {
    const longest = this.longest();
    if (longest !== undefined) {
      this.runner.lengths!.checkOutput(rows, longest, cuts);
    }
  }

  private cutBack(
    request: BatchRequest,
    rows: Batch,
    cuts?: Readonly<Record<string, number>>,
  ): Batch {
    const { lengths } = this.runner;
    const length = lengths?.lengthOf(request.batch);
    return length === undefined || !this.isShorter(request)
      ? rows
      : lengths!.cut(rows, length, cuts);
  }

  private longest(): number | undefined {
    const { lengths } = this.runner;
    if (!lengths) {
      return undefined;
    }
    return (this.longestRow ??= this.parts.reduce<number | undefined>((longest, { request }) => {
      const length = lengths.lengthOf(request.batch);
      return length === undefined ? longest : Math.max(longest ?? 0, length);
    }, undefined));
  }

  private checkStates(partition: Partition, faults: Map<number, Error>): void {
    this.forEachPart(({ request }, start) => {
      const loss = request.stateTurn?.lossOn(partition);
      if (loss) {
        faults.set(start, loss);
      }
    });
  }

  private hookRows(name: string, value: unknown): Batch {
    const axis = axisOf(name, this.runner.outputs.axes);
    try {
      return outputRows(value, this.batch, { '': axis });
    } catch (cause) {
      throw cause instanceof InvalidOutputError
        ? new InvalidOutputError(`Hook "${name}": ${cause.message}`, { cause })
        : cause;
    }
  }

  private forEachPart(visit: (part: Part<BatchRequest>, start: number, end: number) => void): void {
    let start = 0;
    for (const part of this.parts) {
      visit(part, start, start + part.count);
      start += part.count;
    }
  }
}

function failParts(parts: Parts, error: unknown): void {
  parts.forEach(({ request, offset, count }) => request.failPart(offset, count, error));
}

function turnsIn(parts: readonly Part<BatchRequest>[]): StateRows | undefined {
  return parts[0]!.request.stateTurn
    ? turnsOf(parts.map(({ request }) => request.stateTurn!))
    : undefined;
}

class OutputReader {
  private last: Template | undefined;

  constructor(readonly axes: BatchAxes) {}

  read(output: unknown, input: Batch): Batch {
    const rows = outputRows(output, input, this.axes, this.last);
    this.last = rows.template;
    return rows;
  }
}

/**
 * Drops the results of padding.
 *
 * @throws InvalidOutputError if it doesn't have one result per row
 */
export function outputRows(
  output: unknown,
  input: Batch,
  axes: BatchAxes = {},
  known?: Template,
): Batch {
  try {
    return resultsIn(output, input, axes, known);
  } catch (cause) {
    throw unusable(cause);
  }
}

function resultsIn(
  output: unknown,
  input: Batch,
  axes: BatchAxes,
  known: Template | undefined,
): Batch {
  const expected = input.size + input.padding;
  const results = rowsIn(output, input.isPlain);
  if (!results) {
    throw new InvalidOutputError(
      `A batch of ${countOfRows(expected)} needs a list of ${countOf(expected, 'result')}, or tensors ` +
        `with ${countOfRows(expected)}; the batch function returned ${returnedType(output)}`,
    );
  }
  if (Array.isArray(results)) {
    if (results.length !== expected) {
      throw new InvalidOutputError(
        `A batch of ${countOfRows(expected)} needs ${countOf(expected, 'result')}; the batch ` +
          `function returned ${results.length}`,
      );
    }
    return Batch.ofValues(results).slice(0, input.size);
  }
  for (const { path, tensor } of results.leaves) {
    const axis = axisOf(path, axes);
    if (axis !== null && tensor.dims[axis] !== expected) {
      throw new InvalidOutputError(
        `Output ${path === '' ? '' : `"${path}" `}has the shape [${tensor.dims.join(', ')}]; ` +
          `axis ${axis} must have the ${countOfRows(expected)} of the batch` +
          hintOf(path, axes),
      );
    }
  }
  const rows = Batch.ofOutput(results, axes, known);
  if (rows.size !== expected) {
    throw new InvalidOutputError(
      `Unusable output: no leaf of it carries the ${countOfRows(expected)} of the batch`,
    );
  }
  return rows.slice(0, input.size);
}

/** Only a model's outputs have the option. */
function hintOf(path: string, axes: BatchAxes): string {
  return path !== '' && Object.hasOwn(axes, path)
    ? `. If its rows lie on another axis, declare it: outputs: { ${path}: { batchAxis: ... } }`
    : '';
}

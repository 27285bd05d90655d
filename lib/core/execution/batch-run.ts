import { Batch } from '../batch/batch.js';
import { axisOf } from '../batch/template.js';
import type { BatchOutcome } from '../batching/batcher.js';
import type { Part } from '../batching/queued-request.js';
import { InvalidBatchError, InvalidOutputError, RunTimeoutError } from '../errors.js';
import {
  type Partition,
  type PartitionResult,
  STEPPED,
  RejectedRowsError,
} from '../partitions/partition.js';
import type { SessionRows } from '../partitions/session-states.js';
import { formatList } from '../format.js';
import { paddingOf } from './lanes.js';
import type { BatchRequest } from './request.js';
import {
  type BatchInfo,
  type BatchListener,
  type BatchTerms,
  NO_TERMS,
} from '../partitions/batch-function.js';
import { type OutputReader, outputRows } from './output-rows.js';
import type { RowLengths } from './row-lengths.js';
import { sessionRows } from './session-turn.js';

/**
 * One run of a batch on a partition. Gives each request its own rows of what the batch function
 * returns and emits.
 */
export class BatchRun implements BatchListener {
  readonly batch: Batch;
  readonly hooks: readonly string[];
  private steps = 0;
  private longestRow: number | undefined;
  private hooked = false;
  /**
   * The request of each row and the index of the row there; computed only for batches that need it.
   */
  private rows: readonly { readonly request: BatchRequest; readonly index: number }[] | undefined;

  constructor(
    private readonly parts: readonly Part<BatchRequest>[],
    private readonly outputs: OutputReader,
    /** The largest number of rows of the batch, padding included. */
    largest: number,
    /** The reason why its further steps are not wanted, if there is one. */
    private readonly cut: () => Error | undefined = () => undefined,
    /** In a serving whose rows differ in length. */
    private readonly lengths?: RowLengths,
  ) {
    const batches: Batch[] = [];
    const hooks = new Set<string>();
    for (const { request, offset, count } of parts) {
      batches.push(request.batch.slice(offset, offset + count));
      request.hooks?.forEach((hook) => hooks.add(hook));
    }
    const batch = Batch.merge(batches);
    const padding = paddingOf(batch, parts[0]!.request.lane.limits, largest);
    this.batch = padding === batch.padding ? batch : batch.pad(padding);
    this.hooks = [...hooks];
    for (const { request } of parts) {
      request.watch?.running();
    }
  }

  info(partition: number): BatchInfo {
    const { key, size, padding } = this.batch;
    return {
      key,
      size,
      padding,
      partition,
      origin: this.parts[0]!.request.lane.origin,
      hooks: this.hooks,
      sessions: sessionsIn(this.parts),
    };
  }

  /**
   * @throws RejectedRowsError when the memory of rows was transferred away while they waited, or
   * the state of their session is lost
   */
  checkRows(partition: Partition): void {
    const faults = new Map<number, Error>();
    if (this.parts[0]!.request.session) {
      this.checkSessions(partition, faults);
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

  /** Fails the requests whose rows were rejected, and returns the parts of the others. */
  without({ faults }: RejectedRowsError): Part<BatchRequest>[] {
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
    const cuts = this.lengths?.cutsOfHook(name);
    const rows = this.hookRows(name, value);
    this.checkLengths(rows, cuts);
    this.hooked = true;
    this.forEachPart(({ request }, start, end) => {
      if (request.hooks?.includes(name)) {
        const part = this.cutBack(request, rows.slice(start, end), cuts);
        request.hook(name, own ? part.release() : part.consume());
      }
    });
  }

  step(output: unknown, metadata: unknown): void {
    const expected = this.batch.size + this.batch.padding;
    this.steps++;
    if (!Array.isArray(output) || output.length !== expected) {
      throw new InvalidOutputError(
        `A generator must yield, step by step, a list with an entry for each of the ${expected} ` +
          `rows of its batch; it yielded ${formatList(output)}`,
      );
    }
    const cut = this.cut();
    if (cut) {
      this.fail(cut);
      return;
    }
    this.forEachPart(({ request, offset }, start, end) =>
      request.step(offset, output.slice(start, end), metadata),
    );
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

  /** Whether callers have received output of the batch: then it cannot run again. */
  get hasEmitted(): boolean {
    return this.hooked || this.steps > 0;
  }

  /**
   * Checks the output. Returns a function that gives each request its rows of it.
   *
   * @throws InvalidOutputError
   */
  end(result: PartitionResult | typeof STEPPED): () => void {
    if (result === STEPPED) {
      return () =>
        this.parts.forEach(({ request, offset, count }) => request.endSteps(offset, count));
    }
    const rows = this.outputs.read(result.output, this.batch);
    this.checkLengths(rows);
    const output = { rows, isOwn: result.own ?? false, metadata: result.metadata };
    return () =>
      this.forEachPart(({ request, offset, count }, start, end) => {
        if (request.isOver) {
          return;
        }
        if (this.isShorter(request)) {
          const own = this.cutBack(request, rows.slice(start, end));
          request.takeRows(offset, { ...output, rows: own, isOwn: true }, 0, count);
        } else {
          request.takeRows(offset, output, start, end);
        }
      });
  }

  /** Whether the rows of the request are shorter than others of the batch. */
  private isShorter({ batch }: BatchRequest): boolean {
    return this.lengths !== undefined && this.lengths.lengthOf(batch) !== this.longest();
  }

  private checkLengths(rows: Batch, cuts?: Readonly<Record<string, number>>): void {
    const longest = this.longest();
    if (longest !== undefined) {
      this.lengths!.checkOutput(rows, longest, cuts);
    }
  }

  private cutBack(
    request: BatchRequest,
    rows: Batch,
    cuts?: Readonly<Record<string, number>>,
  ): Batch {
    const length = this.lengths?.lengthOf(request.batch);
    return length === undefined || !this.isShorter(request)
      ? rows
      : this.lengths!.cut(rows, length, cuts);
  }

  /** The length that its rows are padded to. */
  private longest(): number | undefined {
    if (!this.lengths) {
      return undefined;
    }
    return (this.longestRow ??= this.parts.reduce<number | undefined>((longest, { request }) => {
      const length = this.lengths?.lengthOf(request.batch);
      return length === undefined ? longest : Math.max(longest ?? 0, length);
    }, undefined));
  }

  get outcome(): BatchOutcome<BatchRequest> {
    return { padding: this.batch.padding, ...(this.steps > 0 && { steps: this.steps }) };
  }

  /** Notes that the batch failed and that its rows run again. */
  willRetry(error: unknown): void {
    if (error instanceof RunTimeoutError) {
      this.parts.forEach(({ request }) => (request.overrun = error));
    }
  }

  fail(error: unknown): void {
    this.parts.forEach(({ request, offset, count }) => request.failPart(offset, count, error));
  }

  private checkSessions(partition: Partition, faults: Map<number, Error>): void {
    this.forEachPart(({ request }, start) => {
      const loss = request.session?.lossOn(partition);
      if (loss) {
        faults.set(start, loss);
      }
    });
  }

  private hookRows(name: string, value: unknown): Batch {
    const axis = axisOf(name, this.outputs.axes);
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

function sessionsIn(parts: readonly Part<BatchRequest>[]): SessionRows | undefined {
  return parts[0]!.request.session
    ? sessionRows(parts.map(({ request }) => request.session!))
    : undefined;
}

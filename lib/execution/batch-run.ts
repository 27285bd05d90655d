import { Batch } from '../batch/batch.js';
import { type BatchAxes, axisOf } from '../batch/template.js';
import type { BatchOutcome } from '../batching/batcher.js';
import type { Part } from '../batching/queued-request.js';
import { InvalidBatchError, InvalidOutputError, RunTimeoutError, isError } from '../errors.js';
import { type PartitionResult, STEPPED, RejectedRowsError } from '../partitions/partition.js';
import { formatValue } from '../format.js';
import { paddingOf } from './lanes.js';
import type { BatchRequest } from './request.js';
import type { BatchInfo, BatchListener, BatchOutput } from '../partitions/batch-function.js';
import { asOutput, rowsIn } from '../batch/container.js';
import { deepCopy } from '../batch/deep-copy.js';

/**
 * One run of a batch on a partition. Gives each request its own rows of what the batch function
 * returns and emits.
 */
export class BatchRun implements BatchListener {
  readonly batch: Batch;
  readonly hooks: readonly string[];
  private steps = 0;
  private hooked = false;
  /**
   * The request of each row and the index of the row there; computed only for batches that need it.
   */
  private rows: readonly { readonly request: BatchRequest; readonly index: number }[] | undefined;

  constructor(
    private readonly parts: readonly Part<BatchRequest>[],
    private readonly outputAxes: BatchAxes,
    /** The largest number of rows of the batch, padding included. */
    largest: number,
    /** The reason why its further steps are not wanted, if there is one. */
    private readonly cut: () => Error | undefined = () => undefined,
  ) {
    const batch = Batch.merge(
      parts.map(({ request, offset, count }) => request.batch.slice(offset, offset + count)),
    );
    const padding = paddingOf(batch, parts[0]!.request.lane.limits, largest);
    this.batch = padding === batch.padding ? batch : batch.pad(padding);
    this.hooks = parts.some(({ request }) => request.hooks)
      ? [...new Set(parts.flatMap(({ request }) => request.hooks ?? []))]
      : [];
    parts.forEach(({ request }) => request.watch?.running());
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
    };
  }

  /** @throws RejectedRowsError when the memory of rows was transferred away while they waited */
  checkRows(): void {
    if (this.parts.every(({ request }) => request.batch.isIntact)) {
      return;
    }
    const faults = new Map<number, Error>();
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
    const rows = this.hookRows(name, value);
    this.hooked = true;
    this.forEachPart(({ request }, start, end) => {
      if (request.hooks?.includes(name)) {
        const part = rows.slice(start, end);
        request.hook(name, own ? part.release() : part.consume());
      }
    });
  }

  step(output: unknown, metadata: unknown): void {
    const expected = this.batch.size + this.batch.padding;
    this.steps++;
    if (!Array.isArray(output) || output.length !== expected) {
      const got = Array.isArray(output) ? `a list of ${output.length}` : formatValue(output);
      throw new InvalidOutputError(
        `A generator must yield, step by step, a list with an entry for each of the ${expected} ` +
          `rows of its batch; it yielded ${got}`,
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

  /** Whether callers have received output of the batch: then it cannot run again. */
  get hasEmitted(): boolean {
    return this.hooked || this.steps > 0;
  }

  /** Gives each request its rows of the output. */
  end(result: PartitionResult | typeof STEPPED): void {
    if (result === STEPPED) {
      this.parts.forEach(({ request, offset, count }) => request.endSteps(offset, count));
      return;
    }
    const rows = outputRows(result.output, this.batch, this.outputAxes);
    const { values } = rows;
    this.forEachPart(({ request, offset }, start, end) => {
      if (request.isOver) {
        return;
      }
      if (values && request.size === 1) {
        request.answerValue(values[start], result.metadata);
        return;
      }
      const part = rows.slice(start, end);
      request.answer(offset, result.own ? part : part.copy(), result.metadata);
    });
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

  private hookRows(name: string, value: unknown): Batch {
    const axis = Object.hasOwn(this.outputAxes, name) ? this.outputAxes[name]! : 0;
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

/**
 * The output of a batch as rows, without the results of padding.
 *
 * @throws InvalidOutputError when it does not have one result per row
 */
export function outputRows(output: unknown, input: Batch, axes: BatchAxes = {}): Batch {
  const expected = input.size + input.padding;
  const results = asOutput(() => rowsIn(output, input.isPlain));
  if (!results) {
    const got = output === null ? 'null' : typeof output;
    throw new InvalidOutputError(
      `A batch of ${expected} rows needs a list of ${expected} results, or tensors with ` +
        `${expected} rows; the batch function returned ${got}`,
    );
  }
  if (Array.isArray(results)) {
    if (results.length !== expected) {
      throw new InvalidOutputError(
        `A batch of ${expected} rows needs ${expected} results; the batch function returned ` +
          `${results.length}`,
      );
    }
    return Batch.ofValues(results).slice(0, input.size);
  }
  for (const { path, tensor } of results.leaves) {
    const axis = axisOf(path, axes);
    if (axis !== null && tensor.dims[axis] !== expected) {
      throw new InvalidOutputError(
        `Output ${path === '' ? '' : `"${path}" `}has the shape [${tensor.dims.join(', ')}]; ` +
          `axis ${axis} must have the ${expected} rows of the batch` +
          hintOf(path, axes),
      );
    }
  }
  const rows = asOutput(() => Batch.ofOutput(results, axes));
  if (rows.size !== expected) {
    throw new InvalidOutputError(
      `Unusable output: no leaf of it carries the ${expected} rows of the batch`,
    );
  }
  return rows.slice(0, input.size);
}

/** Advice for the outputs of a model; nothing else has the option. */
function hintOf(path: string, axes: BatchAxes): string {
  return path !== '' && Object.hasOwn(axes, path)
    ? `. If its rows lie on another axis, declare it: outputs: { ${path}: { batchAxis: ... } }`
    : '';
}

/**
 * The rows in memory of their own, or as views if `isLent`: then the caller copies them at once.
 * Throws the Error that a batch function returned in place of a row's result.
 */
export function releaseOutput(rows: Batch, isLent = false): BatchOutput {
  const output = isLent ? rows.view() : rows.release();
  const error = Array.isArray(output) ? output.find(isError) : undefined;
  if (error) {
    throw error;
  }
  return output;
}

/** Like {@link releaseOutput}, with a copy for one of several callers. */
export function copyOutput(rows: Batch): BatchOutput {
  if (!rows.isPlain) {
    return rows.consume();
  }
  const output = releaseOutput(rows);
  return Array.isArray(output) ? output.map((row) => deepCopy(row)) : output;
}

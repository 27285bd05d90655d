import { type Batch, DEFAULT_KEY } from '../batch/batch.js';
import type { Template } from '../batch/template.js';
import { type CallingBatch, refuseCycle } from '../context/call-cycles.js';
import type { Batcher } from '../batching/batcher.js';
import { Fill } from '../batching/fill.js';
import { currentOrigin, type Origin, type StreamOptions } from '../context/call-context.js';
import type { Callbacks, KeyOptions, ResolvedServing } from '../definition/resolved-serving.js';
import type { CallRecorder } from '../events/call-recorder.js';
import {
  describePort,
  type ModelPort,
  type ModelSignature,
} from '../partitions/model/model-signature.js';
import { type Lanes, type ServingLane } from './lanes.js';
import { type BatchRequest, type Reply, type ReplyEnd, ReplyRequest } from './request.js';
import type { RowLengths } from './row-lengths.js';
import {
  INTERNAL,
  type InternalCallOptions,
  type ResolvedCallOptions,
} from './resolved-call-options.js';
import { StreamRequest } from './stream-request.js';
import { read } from '../batch/container.js';
import { storageClasses } from '../batch/tensor.js';
import {
  InvalidBatchError,
  InvalidInputError,
  InvalidServingError,
  messageOf,
  RequestTooLargeError,
  UnknownKeyError,
} from '../errors.js';
import { countOfRows, formatValue, truncate } from '../format.js';
import type { ResolvedBatchCost } from '../definition/batch-size.js';

export interface CallContext {
  readonly options: StreamOptions<string> & InternalCallOptions;
  readonly resolved: ResolvedCallOptions;
  readonly recorder: CallRecorder | undefined;
  readonly isAlone?: boolean | undefined;
  readonly onAdmitted?: () => void;
  /** Frees the call's place in the queue, held while its rows are prepared. */
  leavePlace?: (() => void) | undefined;
  readonly caller?: CallingBatch | undefined;
}

export class Intake {
  /** Template that fitted last. */
  private checked: Template | undefined;
  private readonly takesStrings: boolean;

  constructor(
    private readonly options: ResolvedServing,
    private readonly callbacks: Callbacks,
    private readonly lanes: Lanes,
    private readonly signature: ModelSignature | undefined,
    private readonly batcher: Batcher<BatchRequest>,
    private readonly lengths?: RowLengths,
  ) {
    const inputs = options.runner === 'model' ? (signature?.inputs ?? []) : [];
    this.takesStrings = inputs.some(({ type }) => type === 'string');
  }

  reply<Answer = Reply>(
    batch: Batch,
    context: CallContext,
    end?: ReplyEnd<Answer>,
  ): Promise<Answer> {
    const request = this.replyRequest(batch, context, costOf(this.callbacks, batch), end);
    request.stateTurn = context.options[INTERNAL]?.turn;
    request.failWhenCancelled();
    if (request.isOver) {
      context.leavePlace?.();
    } else {
      this.submit(request, context);
      request.replyTurn = request.lane.replies?.join();
    }
    return request.reply;
  }

  replyPiece(batch: Batch, context: CallContext, cost: number): ReplyRequest {
    const request = this.replyRequest(batch, context, cost);
    // Pieces are awaited in order: until its turn, nothing handles a rejection.
    request.reply.catch(() => {});
    return this.submit(request, context);
  }

  streamPiece(batch: Batch, context: CallContext, cost: number): StreamRequest {
    const { options, resolved, recorder } = context;
    const { rows, lane } = this.admit(batch, context);
    const hooks = requestedHooks(options);
    const request = new StreamRequest(rows, lane, recorder, hooks, resolved, cost);
    request.isInterleaved = this.options.continuous !== undefined;
    return this.submit(request, context);
  }

  admit(
    batch: Batch,
    { options, recorder, isAlone }: Pick<CallContext, 'options' | 'recorder' | 'isAlone'>,
  ): { readonly rows: Batch; readonly lane: ServingLane } {
    const { lanes, signature, lengths } = this;
    const { name, queue, template } = this.options;
    checkSize(this.options, batch);
    options[INTERNAL]?.turn?.check(batch.size);
    const keys = isAlone || lanes.limits.has(batch.key) ? undefined : lanes.keys;
    validateBatch(name, batch, lanes.optionsOf(batch.key), keys);
    if (!batch.template || batch.template !== this.checked) {
      checkTemplate(name, batch, signature, template);
      this.checked = batch.template;
    }
    if (this.takesStrings) {
      checkStrings(name, batch);
    }
    const origin = this.originOf(options);
    // A refused batch leaves no lane behind.
    const rows = lengths ? lengths.vary(batch) : batch;
    const lane = isAlone
      ? lanes.laneAlone(rows, queue.maxRowsPerCall, origin)
      : lanes.laneOf(rows, origin, options[INTERNAL]?.group);
    const hooks = requestedHooks(options);
    if (hooks) {
      checkHooks(name, batch, hooks, lane.limits.batchSize, signature);
      lengths?.checkHooks(hooks);
    }
    recorder?.queued(batch.size);
    return { rows, lane };
  }

  /** Undefined unless the serving separates origins. */
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
    { onAdmitted, leavePlace, caller }: CallContext,
  ): Request {
    try {
      if (caller && !caller.hasEnded) {
        refuseCycle(caller, this.options.name, this.batcher.waitsOf(request));
        request.onEnd(caller.follow(request, this.batcher));
      }
      if (this.options.batchCost) {
        this.setCosts(request, this.options.batchCost);
      }
      leavePlace?.();
      this.batcher.submit(request);
    } catch (error) {
      request.end();
      throw error;
    }
    onAdmitted?.();
    return request;
  }

  private setCosts(request: BatchRequest, batchCost: ResolvedBatchCost): void {
    const { name } = this.options;
    request.rowCosts = rowCostsOf(name, batchCost, request.batch);
    if (request.whole) {
      checkWholeCost(name, batchCost, request.rowCosts);
    }
  }
}

/** Context of rows that the serving runs for itself. */
export const OF_NO_CALL = { options: {}, recorder: undefined } as const;

export function requestedHooks({ hooks }: StreamOptions<string>): readonly string[] | undefined {
  return hooks?.length ? hooks : undefined;
}

const MOST_HOOKS = 1024;

/** @throws RequestTooLargeError if the size, padding included, exceeds a limit */
export function checkSize({ name, queue }: ResolvedServing, batch: Batch): void {
  const { maxRowsPerCall, maxBytesPerCall } = queue;
  const rows = batch.size + batch.padding;
  if (rows > maxRowsPerCall) {
    throw new RequestTooLargeError(
      `Serving "${name}" takes at most ${countOfRows(maxRowsPerCall)} in one call and was given ${rows}; ` +
        'give fewer at a time, or raise queue.maxRowsPerCall',
    );
  }
  if (maxBytesPerCall !== undefined && batch.bytes > maxBytesPerCall) {
    throw new RequestTooLargeError(
      `Serving "${name}" takes tensors of at most ${maxBytesPerCall} bytes in one call and was ` +
        `given ${batch.bytes}; ` +
        'give fewer rows at a time, or raise queue.maxBytesPerCall',
    );
  }
}

/**
 * Allows any key without `keys`.
 *
 * @throws InvalidBatchError for a batch without rows
 * @throws UnknownKeyError for a key that the serving doesn't have
 * @throws InvalidInputError for plain values if batches are padded
 */
function validateBatch(
  serving: string,
  batch: Batch,
  { allowedSizes }: KeyOptions,
  keys?: readonly string[],
): void {
  if (batch.size === 0) {
    throw new InvalidBatchError(`Serving "${serving}" was given a batch without rows`);
  }
  if (keys && !keys.includes(batch.key)) {
    const hint = batch.key === DEFAULT_KEY ? '; name one: batch.withKey(key)' : '';
    throw new UnknownKeyError(
      `Serving "${serving}" has no key ${formatValue(batch.key)}; its keys are ` +
        `${[...keys].toSorted().join(', ')}${hint}`,
    );
  }
  if (allowedSizes && batch.isPlain) {
    throw new InvalidInputError(
      `Serving "${serving}" pads its batches to ${allowedSizes.join(', ')} rows, and plain ` +
        'values cannot be padded; give tensors',
    );
  }
}

/**
 * The result is the same for all rows of one template.
 *
 * @throws InvalidInputError for rows unlike the model's inputs or the declared template
 */
function checkTemplate(
  serving: string,
  batch: Batch,
  signature?: ModelSignature,
  template?: readonly ModelPort[],
): void {
  const inputs = signature?.inputs ?? template;
  const fault = inputs && mismatch(batch, inputs, signature !== undefined);
  if (fault) {
    const taken = inputs.map(describePort).join(', ');
    throw new InvalidInputError(
      `Serving "${serving}" takes [${taken}] and was given [${truncate(batch.signature)}]: ` +
        fault,
    );
  }
}

/** A list is one row with the entries 0, 1 and so on, which few models have. */
function hintOf(leaves: readonly { readonly path: string }[]): string {
  return leaves.length > 1 && leaves.every(({ path }, index) => path === String(index))
    ? '; a list is one row, with these entries: for several rows give Batch.stack([...])'
    : '';
}

/**
 * @throws InvalidInputError for NUL, where onnxruntime-node would cut the string without an error
 */
export function checkStrings(serving: string, batch: Batch): void {
  const leaf = batch.leafWith('\0');
  if (leaf !== undefined) {
    throw new InvalidInputError(
      `Serving "${serving}" was given a string with NUL (U+0000) in ${formatValue(leaf)}, where ` +
        'onnxruntime-node would cut it; give strings without it',
    );
  }
}

/** @throws InvalidInputError if it isn't a list of names */
export function ownHooks(serving: string, hooks: readonly string[] = []): readonly string[] {
  const own = read(() =>
    Array.isArray(hooks) && hooks.length <= MOST_HOOKS ? [...(hooks as unknown[])] : undefined,
  );
  if (!own?.every((hook) => typeof hook === 'string')) {
    throw new InvalidInputError(
      `Serving "${serving}": hooks must be a list of at most ${MOST_HOOKS} names, and not ` +
        formatValue(hooks),
    );
  }
  return own;
}

/**
 * @throws InvalidInputError for hooks that the model doesn't have, or rows that exceed one batch
 */
export function checkHooks(
  serving: string,
  batch: Batch,
  hooks: readonly string[],
  batchSize: number,
  signature?: ModelSignature,
): void {
  if (batch.size > batchSize) {
    throw new InvalidInputError(
      `Serving "${serving}": a call with hooks is never split, and its ${batch.size} rows are ` +
        `more than the batch size of ${batchSize}`,
    );
  }
  const outputs = signature?.outputs.map(({ name }) => name);
  const unknown = outputs && hooks.find((hook) => !outputs.includes(hook));
  if (unknown !== undefined) {
    throw new InvalidInputError(
      `The model of serving "${serving}" has no output ${formatValue(unknown)} that could be a ` +
        `hook; it has ${outputs!.join(', ')}`,
    );
  }
}

function mismatch(
  batch: Batch,
  inputs: readonly ModelPort[],
  isModel: boolean,
): string | undefined {
  const { template } = batch;
  if (!template) {
    return 'these are no tensors; give some, or make them in preprocess';
  }
  const sizes = new Map<string, number>();
  const leaves = new Map(template.leaves.map((leaf) => [leaf.path, leaf] as const));
  // A bare tensor is the only input of a model. A function accepts any.
  const lone =
    isModel && inputs.length === 1 && template.leaves.length === 1 ? leaves.get('') : undefined;
  for (const port of inputs) {
    const leaf = lone ?? leaves.get(port.name);
    if (!leaf) {
      return `${named(port)} is missing${hintOf(template.leaves)}`;
    }
    if (leaf.type !== port.type) {
      return `${named(port)} is ${leaf.type} and must be ${port.type}`;
    }
    if (leaf.axis !== port.batchAxis) {
      return port.batchAxis === null
        ? `${named(port)} is given with rows on axis ${leaf.axis} and has no batch axis; give ` +
            'the tensor itself'
        : `the rows of ${named(port)} lie on axis ${leaf.axis} and must lie on axis ` +
            `${port.batchAxis}`;
    }
    const fault = wrongShape(port, leaf.dims, sizes);
    if (fault) {
      return fault;
    }
  }
  if (template.leaves.length > inputs.length) {
    const names = new Set(inputs.map(({ name }) => name));
    // Two leaves can have the same path, as in `{ 'a.b': x, a: { b: y } }`.
    const extra = template.leaves.find(({ path }) => !names.delete(path))?.label;
    return `${isModel ? 'the model has' : 'there is'} no input ${formatValue(extra)}`;
  }
  return undefined;
}

/** @param sizes dynamic axes by name: within a call, axes of one name have equal sizes */
function wrongShape(
  port: ModelPort,
  dims: readonly number[],
  sizes: Map<string, number>,
): string | undefined {
  const { shape, batchAxis } = port;
  const name = named(port);
  if (dims.length !== shape.length) {
    const counts = `${name} has ${dims.length} axes and must have ${shape.length}`;
    return batchAxis !== null && dims.length === shape.length - 1
      ? `${counts}; one row has the shape [${dims.toSpliced(batchAxis, 0, 1).join(', ')}]`
      : counts;
  }
  for (const [axis, dim] of shape.entries()) {
    const size = dims[axis]!;
    if (axis === batchAxis) {
      continue;
    }
    const required = typeof dim === 'number' ? dim : sizes.get(dim);
    if (required !== undefined && size !== required) {
      return `axis ${axis} of ${name} is ${size} and must be ${required}`;
    }
    if (typeof dim === 'string' && dim !== '' && dim !== '?') {
      sizes.set(dim, size);
    }
  }
  return undefined;
}

function named({ name }: ModelPort): string {
  return name === '' ? 'the tensor' : `"${name}"`;
}

/** 0 without `queue.maxCost`. */
export function costOf({ name, queue }: Callbacks, batch: Batch): number {
  if (queue?.maxCost === undefined) {
    return 0;
  }
  const costs: unknown = queue.cost ? queue.cost(batch) : bytesOf(batch);
  if (typeof costs !== 'number' || !(costs >= 0)) {
    throw new InvalidServingError(
      `Serving "${name}": queue.cost must return a number of 0 or more, it returned ` +
        formatValue(costs),
    );
  }
  return costs;
}

/** Counts 1 for each string, 0 for plain values. */
function bytesOf({ template, size }: Batch): number {
  const perRow = (template?.leaves ?? []).map(
    ({ type, dims, axis }) =>
      elementsOf(dims, axis) * (storageClasses.get(type)?.BYTES_PER_ELEMENT ?? 1),
  );
  return size * perRow.reduce((sum, bytes) => sum + bytes, 0);
}

/** Ignores the batch axis, since the known shape may have no rows. */
function elementsOf(dims: readonly number[], axis: number | null): number {
  return dims.reduce((elements, dim, i) => (i === axis ? elements : elements * dim), 1);
}

/**
 * @throws InvalidInputError if a cost isn't a finite number above 0, or `of` throws
 * @throws RequestTooLargeError if one is more than a batch may cost
 */
export function rowCostsOf(
  serving: string,
  { of, most }: ResolvedBatchCost,
  batch: Batch,
): readonly number[] {
  return Array.from({ length: batch.size }, (_, row) => {
    const cost = rowCostOf(serving, of, batch, row);
    if (typeof cost !== 'number' || !(cost > 0 && cost < Infinity)) {
      throw new InvalidInputError(
        `Serving "${serving}": batchSize.cost.of returned ${formatValue(cost)} for row ${row}; allowed ` +
          'is a finite number above 0',
      );
    }
    if (cost > most) {
      throw new RequestTooLargeError(
        `Serving "${serving}" runs batches that cost at most ${most}, and row ${row} costs ` +
          `${cost}; shorten it, or raise batchSize.cost.most`,
      );
    }
    return cost;
  });
}

export function mostRowsLike(
  serving: string,
  batch: Batch,
  { of, most }: ResolvedBatchCost,
  size: number,
): number {
  const cost = rowCostOf(serving, of, batch, 0);
  return typeof cost === 'number' && cost > 0
    ? Math.max(1, Math.min(size, Math.floor(most / cost)))
    : size;
}

/** @throws InvalidInputError if a call that must run in one batch costs too much for it */
function checkWholeCost(
  serving: string,
  budget: ResolvedBatchCost,
  rowCosts: readonly number[],
): void {
  const whole = { request: { rowCosts }, offset: 0, count: rowCosts.length };
  const { cost } = new Fill(budget).with([whole]);
  if (cost > budget.most) {
    throw new InvalidInputError(
      `Serving "${serving}": a call with hooks is never split, and its rows cost ${cost}, more ` +
        `than the ${budget.most} of a batch`,
    );
  }
}

function rowCostOf(
  serving: string,
  of: ResolvedBatchCost['of'],
  batch: Batch,
  row: number,
): unknown {
  try {
    return of(rowIn(batch, row));
  } catch (cause) {
    throw new InvalidInputError(
      `Serving "${serving}": batchSize.cost.of failed for row ${row}: ${messageOf(cause)}`,
      { cause },
    );
  }
}

function rowIn(batch: Batch, row: number): unknown {
  return batch.values ? batch.values[row] : batch.slice(row, row + 1).view();
}

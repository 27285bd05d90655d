import type { Batch } from '../batch/batch.js';
import type { Template } from '../batch/template.js';
import { type Lane, type Linked, LinkedList, paddedSize } from '../batching/queued-request.js';
import { InvalidInputError } from '../errors.js';
import { hasRows, type ModelSignature } from '../partitions/model/model-signature.js';
import { formatValue } from '../format.js';
import type { Origin } from '../context/call-context.js';
import type { KeyOptions } from '../definition/resolved-serving.js';

export interface ServingLane extends Lane {
  readonly limits: KeyOptions;
  readonly key: string;
  readonly origin: Origin | undefined;
  /** Set with `queue.order`. */
  readonly replies?: ReplyOrder | undefined;
}

/** Calls that share batches only with each other. */
export interface CallGroup {
  readonly partition?: number | undefined;
}

type Limits = { -readonly [Option in keyof KeyOptions]: KeyOptions[Option] } & Pick<
  Lane['limits'],
  'like'
>;

/** Beyond this many more lanes than keys, we forget all: later rows open new windows. */
const MORE_LANES = 1024;
const LONGEST_ORIGIN = 256;

/** Options may change while the serving runs. */
export class Lanes {
  readonly keys: readonly string[];
  readonly limits: ReadonlyMap<string, Limits>;
  private readonly lanes = new Map<string, ServingLane>();
  /** Cached: most calls ask for the same. */
  private last: { readonly template: Template | undefined; readonly lane: ServingLane } | undefined;
  private readonly grouped = new WeakMap<CallGroup, Map<string, ServingLane>>();
  /**
   * Limits of calls that run alone, by their key's options, with which they change. They stay the
   * same objects, since queues learn by them.
   */
  private readonly alone = new Map<KeyOptions, { limits: Limits; mostRows: number }>();
  private readonly others: Limits;
  /** Rows of one model run, if the file fixes them. */
  private step = 1;
  private most = Infinity;

  constructor(
    keys: ReadonlyMap<string, KeyOptions>,
    others: KeyOptions,
    private readonly preservesOrder = false,
  ) {
    this.keys = [...keys.keys()];
    this.limits = new Map([...keys].map(([key, options]) => [key, { ...options }]));
    this.others = { ...others };
  }

  /**
   * Fits the batch sizes to the model: multiples of its fixed batch size, one call per batch
   * without a batch axis, and no more rows than its server takes.
   */
  fit({
    inputs,
    fixedBatch,
    mostRows = Infinity,
  }: Pick<ModelSignature, 'inputs' | 'fixedBatch' | 'mostRows'>): void {
    this.step = fixedBatch ?? 1;
    this.most = hasRows(inputs) ? mostRows : 1;
    [...this.limits.values(), this.others].forEach((limits) => this.set(limits, limits));
  }

  optionsOf(key: string): KeyOptions {
    return this.limits.get(key) ?? this.others;
  }

  /** Applies from the next window on. */
  change(keys: readonly string[], options: Partial<KeyOptions>): void {
    keys.forEach((key) => this.set(this.limits.get(key)!, options));
  }

  laneAlone({ key }: Batch, mostRows: number, origin?: Origin): ServingLane {
    checkOrigin(origin);
    const options = this.optionsOf(key);
    let alone = this.alone.get(options);
    if (!alone) {
      alone = { limits: aloneOf(options, mostRows), mostRows };
      this.alone.set(options, alone);
    }
    return { key, origin, limits: alone.limits, isAlone: true };
  }

  /** Rows of an undeclared key share no batch. */
  laneOf(batch: Batch, origin?: Origin, group?: CallGroup): ServingLane {
    const { key, template } = batch;
    if (origin !== undefined || group !== undefined) {
      return this.findLane(batch, origin, group);
    }
    const { last } = this;
    if (last && last.template === template && last.lane.key === key) {
      return last.lane;
    }
    const lane = this.findLane(batch);
    if (this.limits.has(key)) {
      this.last = { template, lane };
    }
    return lane;
  }

  private findLane(batch: Batch, origin?: Origin, group?: CallGroup): ServingLane {
    const { key } = batch;
    checkOrigin(origin);
    const limits = this.limits.get(key);
    if (!limits) {
      return { key, origin, limits: this.others, partition: group?.partition };
    }
    const template = batch.isPlain ? key : `${key}\0${batch.signature}`;
    // The origin comes from the caller, and could look like a signature.
    const id = origin === undefined ? template : `${key}\0${batch.signature}\0${origin}`;
    const lanes = group ? this.lanesOf(group) : this.lanes;
    let lane = lanes.get(id);
    if (!lane) {
      if (lanes.size === this.limits.size + MORE_LANES) {
        lanes.clear();
        this.last = undefined;
      }
      const replies = this.preservesOrder ? new ReplyOrder() : undefined;
      lane = { key, origin, limits, replies, partition: group?.partition };
      lanes.set(id, lane);
    }
    return lane;
  }

  private lanesOf(group: CallGroup): Map<string, ServingLane> {
    const lanes = this.grouped.get(group) ?? new Map<string, ServingLane>();
    this.grouped.set(group, lanes);
    return lanes;
  }

  private set(limits: Limits, { batchSize, runSize, ...others }: Partial<KeyOptions>): void {
    const step = this.step > 1 ? { step: this.step } : {};
    const sizes = {
      ...(batchSize !== undefined && { batchSize: this.fitted(batchSize) }),
      ...(runSize !== undefined && { runSize: this.fitted(runSize) }),
    };
    Object.assign(limits, others, sizes, step);
    const alone = this.alone.get(limits);
    if (alone) {
      Object.assign(alone.limits, aloneOf(limits, alone.mostRows));
    }
  }

  private fitted(size: number): number {
    const { step, most } = this;
    return size === Infinity ? most : Math.min(most, Math.max(step, size - (size % step)));
  }
}

function aloneOf(options: KeyOptions, mostRows: number): Limits {
  return {
    ...options,
    batchSize: Math.min(options.runSize, mostRows),
    batchTimeout: 0,
    // A target sizes batches that calls share.
    latencyTarget: undefined,
    like: options,
  };
}

function checkOrigin(origin: unknown): void {
  if (origin !== undefined && (typeof origin !== 'string' || origin.length > LONGEST_ORIGIN)) {
    throw new InvalidInputError(
      `The origin of a call is a string of at most ${LONGEST_ORIGIN} characters, and not ` +
        formatValue(origin),
    );
  }
}

/** Pads to the next allowed size, or as callers asked if there is room. */
export function paddingOf({ size, padding }: Batch, limits: KeyOptions, largest: number): number {
  return limits.allowedSizes
    ? paddedSize(limits, size) - size
    : Math.min(padding, Math.max(0, largest - size));
}

export interface ReplyTurn {
  /** Calls back when all earlier calls have ended. */
  ready(answer: () => void): void;
  /** Lets later calls pass. */
  end(): void;
}

interface Turn extends Linked<Turn> {
  answer: (() => void) | undefined;
  hasEnded: boolean;
}

/** A call that fails, is cancelled or is late ends immediately, and releases its turn. */
export class ReplyOrder {
  private readonly turns = new LinkedList<Turn>();

  join(): ReplyTurn {
    const turn: Turn = { answer: undefined, hasEnded: false, before: undefined, after: undefined };
    this.turns.push(turn);
    return {
      ready: (answer) => {
        turn.answer = answer;
        this.release();
      },
      end: () => {
        turn.hasEnded = true;
        // A call with an answer waits for others, or ends because it is answered.
        if (!turn.answer) {
          this.release();
        }
      },
    };
  }

  private release(): void {
    for (let { first } = this.turns; first; { first } = this.turns) {
      const { hasEnded, answer } = first;
      if (!hasEnded && !answer) {
        return;
      }
      // Removed before it is answered, which ends it.
      this.turns.remove(first);
      if (!hasEnded) {
        answer!();
      }
    }
  }
}

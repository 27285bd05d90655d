import { type BeforeApplicationShutdown, Logger, type OnApplicationShutdown, type OnModuleInit } from '@nestjs/common';
import { Subject } from 'rxjs';
import type { Batch } from '../batch/batch.js';
import type { BatchAxes } from '../batch/template.js';
import { Batcher, type BatchRecord, type Row } from '../batching/batcher.js';
import { BatchFailedError, isServingError, ServingClosedError, ServingLoadError } from '../errors.js';
import type { Engine, Opened } from '../partitions/engine.js';
import type { ServingKind } from '../partitions/handler.partition.js';
import { axesOf } from '../partitions/model-signature.js';
import type { PartitionOptions } from '../partitions/partition.js';
import { type Callbacks, finishCall, prepareCall } from './call.js';
import { checkFit } from './fit.js';
import { outputRows } from './output.js';
import { BatchRequest, batchOf, joinOutput, partsOf } from './request.js';
import type { ResolvedServing } from './resolve-definition.js';
import { Serving } from './serving.js';
import type { BatchEvent, ServingEvent } from './serving-event.js';

/** Open partitions, and where the rows of their model lie. */
interface Loaded extends Opened {
  readonly inputAxes: BatchAxes;
  readonly outputAxes: BatchAxes;
}

interface Started {
  readonly loaded: Loaded;
  readonly batcher: Batcher<BatchRequest>;
}

/** The output rows of one batch, ready to be shared out. */
interface Answer {
  readonly rows: Batch;
  readonly metadata: unknown;
}

/**
 * A serving that owns its partitions. This file is the whole line from call to reply:
 *
 *     prepare -> | admit -> batcher -> dispatch: partition -> answer | -> finish
 *     caller's half                 shared half                     caller's half
 */
export class LocalServing<Input = unknown, Output = unknown>
  extends Serving<Input, Output>
  implements OnModuleInit, BeforeApplicationShutdown, OnApplicationShutdown
{
  readonly name: string;
  private readonly subject = new Subject<ServingEvent>();
  readonly events$ = this.subject.asObservable();
  private readonly logger = new Logger('Serving');
  private starting: Promise<Started> | undefined;
  private started: Started | undefined;
  private inline: Promise<Loaded> | undefined;
  private overrun: Promise<true> | undefined;
  private clock: NodeJS.Timeout | undefined;
  private ending: Promise<void> | undefined;

  constructor(
    private readonly options: ResolvedServing,
    private readonly callbacks: Callbacks,
    private readonly engine: Engine,
  ) {
    super();
    this.name = options.name;
  }

  override async batchedRun(input: Input): Promise<Output> {
    const { batcher, loaded } = this.running();
    const prepared = prepareCall(this.callbacks, input, loaded.inputAxes);
    // No await where there is nothing to wait for: it would cost every call a turn of the microtask queue.
    const call = prepared instanceof Promise ? await prepared : prepared;
    checkFit(this.name, call.batch, this.options.batchKeys, loaded.signature);
    const request = new BatchRequest(call.batch);
    batcher.submit(request, call.batch.size);
    return finishCall(this.callbacks, call, await request.reply) as Output;
  }

  override async run(input: Input): Promise<Output> {
    const loaded = await this.loadInline();
    const call = await prepareCall(this.callbacks, input, loaded.inputAxes);
    checkFit(this.name, call.batch, this.options.batchKeys, loaded.signature);
    const answers: Answer[] = [];
    for (const batch of call.batch.chunksOf(this.options.runSize)) {
      answers.push(await this.execute(loaded, 0, batch));
    }
    const output = joinOutput(answers.map(({ rows }) => rows));
    return finishCall(this.callbacks, call, { output, metadata: answers[0]!.metadata }) as Output;
  }

  /** Loads every partition; resolves when the serving can be called. */
  async start(): Promise<void> {
    this.refuseOnceClosed();
    this.starting ??= this.open();
    this.started = await this.starting;
  }

  /** Takes no more calls; resolves when queued and running batches have ended as `drain` and `shutdown` say. */
  close(): Promise<void> {
    return (this.ending ??= this.end());
  }

  onModuleInit(): Promise<void> {
    return this.start();
  }

  /** Nest waits next for the clients of its servers, and some of them for rows that are queued here: the clock runs from now. */
  beforeApplicationShutdown(): void {
    const { drain, shutdown } = this.options;
    this.overrun ??= new Promise((resolve) => (this.clock = setTimeout(() => resolve(this.abandon()), shutdown)));
    if (!drain) {
      this.abandon();
    }
  }

  onApplicationShutdown(): Promise<void> {
    return this.close();
  }

  private async open(): Promise<Started> {
    const { name, batchSize, batchTimeout, maxQueue, partitions } = this.options;
    const loaded = await this.load('process', partitions);
    const batcher = new Batcher<BatchRequest>({
      name,
      batchSize,
      batchTimeout,
      maxQueue,
      slots: loaded.partitions,
      dispatch: (rows, partition) => this.dispatch(loaded, rows, partition),
      observe: (record) => this.subject.next(this.eventOf(record)),
    });
    this.warnOf(loaded);
    return { loaded, batcher };
  }

  private running(): Started {
    if (!this.started) {
      throw new ServingClosedError(
        `Serving "${this.name}" has not been started; the application starts it before it listens, elsewhere call start()`,
      );
    }
    return this.started;
  }

  private loadInline(): Promise<Loaded> {
    this.refuseOnceClosed();
    return (this.inline ??= this.load('inline', this.options.partitions.slice(0, 1)));
  }

  private refuseOnceClosed(): void {
    if (this.ending) {
      throw new ServingClosedError(`Serving "${this.name}" is closed and takes no more calls`);
    }
  }

  /** Runs the rows as one batch and settles their requests; resolves with the error if that failed. */
  private async dispatch(loaded: Loaded, rows: readonly Row<BatchRequest>[], partition: number): Promise<unknown> {
    const parts = partsOf(rows);
    try {
      const answer = await this.execute(loaded, partition, batchOf(parts));
      let start = 0;
      for (const { request, offset, count } of parts) {
        request.answer(offset, answer.rows.slice(start, start + count), answer.metadata);
        start += count;
      }
      return undefined;
    } catch (error) {
      for (const { request } of parts) {
        request.fail(error);
      }
      return error;
    }
  }

  private async execute({ partitions, outputAxes }: Loaded, partition: number, batch: Batch): Promise<Answer> {
    try {
      const { output, metadata } = await partitions[partition]!.run(batch);
      return { rows: outputRows(output, batch, outputAxes), metadata };
    } catch (cause) {
      if (isServingError(cause)) {
        throw cause;
      }
      throw new BatchFailedError(`Serving "${this.name}": a batch of ${batch.size} rows failed: ${messageOf(cause)}`, { cause });
    }
  }

  private async load(kind: ServingKind, partitions: readonly PartitionOptions[]): Promise<Loaded> {
    try {
      const opened = await this.engine(kind, partitions);
      const { inputs = [], outputs = [] } = opened.signature ?? {};
      return { ...opened, inputAxes: axesOf(inputs), outputAxes: axesOf(outputs) };
    } catch (cause) {
      if (isServingError(cause)) {
        const message = `Serving "${this.name}": ${cause.message}`;
        // What is printed of an error is its stack, which has the message in it.
        throw Object.assign(cause, { message, stack: cause.stack?.replace(cause.message, () => message) });
      }
      throw new ServingLoadError(`Serving "${this.name}" could not start: ${messageOf(cause)}`, { cause });
    }
  }

  private async end(): Promise<void> {
    this.beforeApplicationShutdown();
    const late = await Promise.race([this.release(), this.overrun]).finally(() => clearTimeout(this.clock));
    if (late) {
      this.logger.warn(
        `Serving "${this.name}" did not finish its batches within ${this.options.shutdown} ms of shutdown; what was queued is answered as closed`,
      );
    }
    this.subject.complete();
  }

  /** Ends the partitions once all batches have run; those that are still loading, once they have loaded. */
  private async release(): Promise<void> {
    void this.started?.batcher.close();
    const started = await this.starting?.catch(() => undefined);
    const inline = await this.inline?.catch(() => undefined);
    await started?.batcher.close();
    const partitions = [...(started?.loaded.partitions ?? []), ...(inline?.partitions ?? [])];
    await Promise.all(partitions.map((partition) => partition.close()));
  }

  /** Takes no more calls, and answers those that no partition has taken. */
  private abandon(): true {
    void this.started?.batcher.close();
    this.started?.batcher.abandon(new ServingClosedError(`Serving "${this.name}" was closed before the call could run`));
    return true;
  }

  private eventOf({ rows, ...record }: BatchRecord<BatchRequest>): BatchEvent {
    const { key } = rows[0]!.request.batch;
    return { type: 'batch', serving: this.name, key, rows: rows.length, fill: rows.length / record.batchSize, ...record };
  }

  private warnOf({ signature }: Loaded): void {
    const { fixedBatch, dynamicallyQuantised } = signature ?? {};
    if (dynamicallyQuantised) {
      this.logger.warn(
        `The model of serving "${this.name}" quantises its activations over the whole batch (DynamicQuantizeLinear): ` +
          'results depend a little on batch mates; use a float or statically quantised model where they must not',
      );
    }
    if (fixedBatch !== undefined) {
      this.logger.warn(
        `The model of serving "${this.name}" has a fixed batch of ${fixedBatch}: a batch runs in steps of ${fixedBatch} and gains nothing; ` +
          'export it with a dynamic batch axis',
      );
    }
  }
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

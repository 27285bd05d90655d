import { Logger, type OnApplicationShutdown, type OnModuleInit } from '@nestjs/common';
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
  implements OnModuleInit, OnApplicationShutdown
{
  readonly name: string;
  private readonly subject = new Subject<ServingEvent>();
  readonly events$ = this.subject.asObservable();
  private readonly logger = new Logger('Serving');
  private started: Started | undefined;
  private inline: Promise<Loaded> | undefined;
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
    this.started = { loaded, batcher };
    this.warnOf(loaded);
  }

  /** Takes no more calls; resolves when queued and running batches have ended as `drain` and `shutdown` say. */
  close(): Promise<void> {
    return (this.ending ??= this.end());
  }

  onModuleInit(): Promise<void> {
    return this.start();
  }

  onApplicationShutdown(): Promise<void> {
    return this.close();
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
    if (this.ending) {
      throw new ServingClosedError(`Serving "${this.name}" is closed and takes no more calls`);
    }
    return (this.inline ??= this.load('inline', this.options.partitions.slice(0, 1)));
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
        cause.message = `Serving "${this.name}": ${cause.message}`;
        throw cause;
      }
      throw new ServingLoadError(`Serving "${this.name}" could not start: ${messageOf(cause)}`, { cause });
    }
  }

  private async end(): Promise<void> {
    const { name, drain, shutdown } = this.options;
    const inline = await this.inline?.catch(() => undefined);
    const { batcher, loaded } = this.started ?? {};
    const partitions = [...(loaded?.partitions ?? []), ...(inline?.partitions ?? [])];
    const drained = batcher?.close();
    if (!drain) {
      batcher?.abandon(new ServingClosedError(`Serving "${name}" was closed before the call could run`));
    }
    const ended = Promise.resolve(drained).then(() => Promise.all(partitions.map((partition) => partition.close())));
    if (!(await settledWithin(ended, shutdown))) {
      this.logger.warn(
        `Serving "${name}" did not finish its batches within ${shutdown} ms of shutdown; what was queued is answered as closed`,
      );
      batcher?.abandon(new ServingClosedError(`Serving "${name}" was closed before the call could run`));
    }
    this.subject.complete();
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

/** False when the promise takes longer than that; its error, if any, comes through. */
async function settledWithin(promise: Promise<unknown>, ms: number): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<boolean>((resolve) => (timer = setTimeout(() => resolve(false), ms)));
  try {
    return await Promise.race([promise.then(() => true), late]);
  } finally {
    clearTimeout(timer);
  }
}

import { Logger, type OnApplicationShutdown, type OnModuleInit } from '@nestjs/common';
import { Subject } from 'rxjs';
import type { Batch } from '../batch/batch.js';
import { Batcher, type BatchRecord, type Row } from '../batching/batcher.js';
import { BatchFailedError, isServingError, ServingClosedError, ServingLoadError } from '../errors.js';
import type { Engine, Opened } from '../partitions/engine.js';
import type { ServingKind } from '../partitions/handler.partition.js';
import { axesOf } from '../partitions/model-signature.js';
import type { PartitionOptions } from '../partitions/partition.js';
import { type Call, type Callbacks, finishCall, prepareCall } from './call.js';
import { checkFit } from './fit.js';
import { outputRows } from './output.js';
import { BatchRequest, batchOf, joinOutput, partsOf } from './request.js';
import type { ResolvedServing } from './resolve-definition.js';
import { Serving } from './serving.js';
import type { BatchEvent, ServingEvent } from './serving-event.js';

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
  private opened: Opened | undefined;
  private inline: Promise<Opened> | undefined;
  private batcher: Batcher<BatchRequest> | undefined;
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
    if (!this.batcher || !this.opened) {
      throw new ServingClosedError(
        `Serving "${this.name}" has not been started; its start is part of application start, or call start()`,
      );
    }
    const call = await this.prepare(input, this.opened);
    const request = new BatchRequest(call.batch);
    this.batcher.submit(request, call.batch.size);
    return this.finish(call, await request.reply);
  }

  override async run(input: Input): Promise<Output> {
    if (this.ending) {
      throw new ServingClosedError(`Serving "${this.name}" is closed and takes no more calls`);
    }
    this.inline ??= this.load('inline', this.options.partitions.slice(0, 1));
    const inline = await this.inline;
    const call = await this.prepare(input, inline);
    const answers: Answer[] = [];
    for (const batch of call.batch.chunksOf(this.options.runSize)) {
      answers.push(await this.execute(inline, 0, batch));
    }
    return this.finish(call, { output: joinOutput(answers.map(({ rows }) => rows)), metadata: answers[0]!.metadata });
  }

  /** Loads every partition; resolves when the serving can be called. */
  async start(): Promise<void> {
    const { name, batchSize, batchTimeout, maxQueue, partitions } = this.options;
    this.opened = await this.load('process', partitions);
    this.batcher = new Batcher({
      name,
      batchSize,
      batchTimeout,
      maxQueue,
      slots: this.opened.partitions,
      dispatch: (rows, partition) => this.dispatch(rows, partition),
      observe: (record) => this.subject.next(this.eventOf(record)),
    });
    this.warnOfModel();
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

  private async prepare(input: Input, { signature }: Opened): Promise<Call> {
    const call = await prepareCall(this.callbacks, input, signature && axesOf(signature.inputs));
    checkFit(this.name, call.batch, this.options.batchKeys, signature);
    return call;
  }

  private async finish(call: Call, result: Parameters<typeof finishCall>[2]): Promise<Output> {
    return (await finishCall(this.callbacks, call, result)) as Output;
  }

  /** Runs the rows as one batch and settles their requests; resolves with the error if that failed. */
  private async dispatch(rows: readonly Row<BatchRequest>[], partition: number): Promise<unknown> {
    const parts = partsOf(rows);
    try {
      const answer = await this.execute(this.opened!, partition, batchOf(parts));
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

  private async execute({ partitions, signature }: Opened, partition: number, batch: Batch): Promise<Answer> {
    try {
      const { output, metadata } = await partitions[partition]!.run(batch);
      return { rows: outputRows(output, batch, signature && axesOf(signature.outputs)), metadata };
    } catch (cause) {
      if (isServingError(cause)) {
        throw cause;
      }
      throw new BatchFailedError(`Serving "${this.name}": a batch of ${batch.size} rows failed: ${messageOf(cause)}`, { cause });
    }
  }

  private async load(kind: ServingKind, partitions: readonly PartitionOptions[]): Promise<Opened> {
    try {
      return await this.engine(kind, partitions);
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
    const partitions = [...(this.opened?.partitions ?? []), ...(inline?.partitions ?? [])];
    const drained = this.batcher?.close();
    if (!drain) {
      this.batcher?.abandon(new ServingClosedError(`Serving "${name}" was closed before the call could run`));
    }
    const ended = Promise.resolve(drained).then(() => Promise.all(partitions.map((partition) => partition.close())));
    if (!(await settledWithin(ended, shutdown))) {
      this.logger.warn(
        `Serving "${name}" did not finish its batches within ${shutdown} ms of shutdown; what was queued is answered as closed`,
      );
      this.batcher?.abandon(new ServingClosedError(`Serving "${name}" was closed before the call could run`));
    }
    this.subject.complete();
  }

  private eventOf({ rows, ...record }: BatchRecord<BatchRequest>): BatchEvent {
    const { key } = rows[0]!.request.batch;
    return { type: 'batch', serving: this.name, key, rows: rows.length, fill: rows.length / record.batchSize, ...record };
  }

  private warnOfModel(): void {
    const { fixedBatch, dynamicallyQuantised } = this.opened?.signature ?? {};
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

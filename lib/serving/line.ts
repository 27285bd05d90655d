import type { Batch } from '../batch/batch.js';
import type { BatchAxes } from '../batch/template.js';
import { Batcher, type Row } from '../batching/batcher.js';
import { BatchFailedError, isServingError, messageOf } from '../errors.js';
import type { Opened } from '../partitions/engine.js';
import { axesOf } from '../partitions/model-signature.js';
import { type Call, type Callbacks, finishCall, prepareCall } from './call.js';
import { checkFit } from './fit.js';
import { outputRows } from './output.js';
import { BatchRequest, batchOf, joinOutput, partsOf } from './request.js';
import type { ResolvedServing } from './resolve-definition.js';
import { type BatchEvent, batchEvent } from './serving-event.js';

/** The output rows of one batch, ready to be shared out. */
interface Answer {
  readonly rows: Batch;
  readonly metadata: unknown;
}

/**
 * A loaded serving at work. This file is the whole line from call to reply:
 *
 *     prepareCall -> | checkFit -> batcher -> dispatch -> partition.run -> answer | -> finishCall
 *     caller's half                          shared half                          caller's half
 */
export class ServingLine<Input, Output> {
  private readonly batcher: Batcher<BatchRequest>;
  private readonly inputAxes: BatchAxes;
  private readonly outputAxes: BatchAxes;

  constructor(
    private readonly options: ResolvedServing,
    private readonly callbacks: Callbacks,
    private readonly opened: Opened,
    observe: (event: BatchEvent) => void,
  ) {
    const { name, batchSize, batchTimeout, maxQueue } = options;
    const { partitions: slots, signature } = opened;
    this.inputAxes = axesOf(signature?.inputs ?? []);
    this.outputAxes = axesOf(signature?.outputs ?? []);
    this.batcher = new Batcher({
      name,
      batchSize,
      batchTimeout,
      maxQueue,
      slots,
      dispatch: (rows, partition) => this.dispatch(rows, partition),
      observe: (record) => observe(batchEvent(name, record.rows[0]!.request.batch.key, record)),
    });
  }

  /** Runs the rows of the input in batches with those of concurrent callers. */
  async batchedRun(input: Input): Promise<Output> {
    const prepared = prepareCall(this.callbacks, input, this.inputAxes);
    // No await where there is nothing to wait for: it would cost every call a turn of the microtask queue.
    const call = prepared instanceof Promise ? await prepared : prepared;
    this.check(call);
    const request = new BatchRequest(call.batch);
    this.batcher.submit(request, call.batch.size);
    return finishCall(this.callbacks, call, await request.reply) as Output;
  }

  /** Runs the input alone and at once, on the first partition. */
  async run(input: Input): Promise<Output> {
    const call = await prepareCall(this.callbacks, input, this.inputAxes);
    this.check(call);
    const answers: Answer[] = [];
    for (const batch of call.batch.chunksOf(this.options.runSize)) {
      answers.push(await this.execute(0, batch));
    }
    const output = joinOutput(answers.map(({ rows }) => rows));
    return finishCall(this.callbacks, call, { output, metadata: answers[0]!.metadata }) as Output;
  }

  /** Still takes calls, but lets none wait for others. */
  drain(): void {
    this.batcher.drain();
  }

  /** Takes no more calls, runs those it has, and ends the partitions. */
  async close(): Promise<void> {
    await this.batcher.close();
    await Promise.all(this.opened.partitions.map((partition) => partition.close()));
  }

  /** Takes no more calls, and answers with the error those that no partition has taken. */
  abandon(error: Error): void {
    void this.batcher.close();
    this.batcher.abandon(error);
  }

  private check({ batch }: Call): void {
    checkFit(this.options.name, batch, this.options.batchKeys, this.opened.signature);
  }

  /** Runs the rows as one batch and settles their requests; resolves with the error if that failed. */
  private async dispatch(rows: readonly Row<BatchRequest>[], partition: number): Promise<unknown> {
    const parts = partsOf(rows);
    try {
      const answer = await this.execute(partition, batchOf(parts));
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

  private async execute(partition: number, batch: Batch): Promise<Answer> {
    try {
      const { output, metadata } = await this.opened.partitions[partition]!.run(batch);
      return { rows: outputRows(output, batch, this.outputAxes), metadata };
    } catch (cause) {
      if (isServingError(cause)) {
        throw cause;
      }
      const reason = messageOf(cause);
      throw new BatchFailedError(`Serving "${this.options.name}": a batch of ${batch.size} rows failed: ${reason}`, { cause });
    }
  }
}

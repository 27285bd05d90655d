import { InvalidServingError, messageOf, ServingLoadError, toWire } from '../../errors.js';
import { Queue } from '../../streaming/queue.js';
import { type BatchListener, endedRowsOf } from '../batch-function.js';
import { NotStartedError, STEPPED } from '../partition.js';
import {
  packOutput,
  packTensors,
  sendableOutput,
  spareOf,
  unpackRows,
  unpackTensors,
} from './transfer.js';
import {
  type BatchEnd,
  type BatchProgress,
  type FeedsRequest,
  type FileTask,
  type Listen,
  type Loaded,
  type LoadResult,
  type RowsRequest,
  type RunEnd,
  type Forget,
  STEPS_AHEAD,
  type TensorModel,
  type WorkerReply,
  type WorkerRequest,
  type WorkerRunner,
  type WorkerTask,
} from './worker-protocol.js';
import { openFactory, type Openers, openerOf, type RunnerFactory } from '../engine.js';
import type { FactoryPartition } from '../function.partition.js';

/** A revoked batch's callers already have an answer. */
const REVOKED: BatchEnd = { error: toWire(new NotStartedError('The batch was revoked')) };

type BatchRequest = RowsRequest | FeedsRequest | { readonly unreadable: unknown };

type QueuedRequest = BatchRequest | Forget;

export interface Port {
  listen(onRequest: (request: WorkerRequest) => void): void;
  /** @throws if the message can't be cloned */
  post(
    message: LoadResult | WorkerReply,
    transfer: readonly ArrayBuffer[],
    spare?: readonly ArrayBuffer[],
  ): void;
  /** False if the batch was revoked. */
  begin(batch: number): boolean;
  exit(): void;
}

interface RunningBatch {
  readonly batch: number;
  readonly endedRows: Set<number>;
  unacknowledged: number;
  resume(): void;
}

export class WorkerHost {
  private readonly requests = new Queue<QueuedRequest>();
  private batches = 0;
  private readonly running = new Map<number, RunningBatch>();

  constructor(
    private readonly task: WorkerTask,
    private readonly port: Port,
    private readonly openers: Openers,
  ) {}

  async run(): Promise<void> {
    // Listens before the first await, to miss no batch.
    this.port.listen((request) => this.receive(request));
    const runner = await this.open();
    if (!runner) {
      return;
    }
    let ended = Promise.resolve();
    for await (const request of this.requests) {
      if ('forget' in request) {
        runner.forget(request.forget);
        continue;
      }
      const end = this.runBatch(runner, request);
      if (runner.isConcurrent) {
        ended = ended.then(() => end);
      } else {
        await end;
      }
    }
    await ended;
  }

  private receive(request: WorkerRequest): void {
    if ('end' in request) {
      this.requests.end();
    } else if ('halt' in request) {
      this.port.exit();
    } else if (!('batch' in request)) {
      this.requests.push(request);
    } else {
      const running = this.running.get(request.batch);
      if (!running) {
        return;
      }
      if ('endedRows' in request) {
        request.endedRows.forEach((row) => running.endedRows.add(row));
      } else {
        running.unacknowledged -= request.acknowledged;
      }
      running.resume();
    }
  }

  private async open(): Promise<WorkerRunner | undefined> {
    const { task, openers } = this;
    try {
      const runner =
        'opener' in task
          ? new ModelRunner(await openers.models[task.opener]!(task as never))
          : await FileRunner.open(task, openers);
      this.port.post(runner.loaded, []);
      return runner;
    } catch (error) {
      this.port.post({ error: toWire(error) }, []);
      return undefined;
    }
  }

  private async runBatch(runner: WorkerRunner, request: BatchRequest): Promise<void> {
    const batch = this.batches++;
    const running = { batch, endedRows: new Set<number>(), unacknowledged: 0, resume: () => {} };
    this.running.set(batch, running);
    const begins = this.port.begin(batch);
    let end: RunEnd;
    try {
      if ('unreadable' in request) {
        throw request.unreadable;
      }
      end = begins
        ? await runner.run(request, (...asked) => this.listener(running, ...asked))
        : [REVOKED];
    } catch (error) {
      end = [{ error: toWire(error) }];
    }
    this.running.delete(batch);
    this.end(batch, ...end);
  }

  private listener(
    running: RunningBatch,
    hooks: readonly string[],
    plainRows: boolean,
  ): BatchListener {
    const { batch, endedRows } = running;
    const report = (progress: BatchProgress): void => this.port.post({ batch, ...progress }, []);
    return {
      hooks,
      // Copied, not moved: the function may still use the value.
      hook: (name, value) => report({ hook: name, value: packOutput(value, plainRows)[0] }),
      step: (output, metadata) => {
        report({ step: packOutput(output, true)[0], metadata });
        running.unacknowledged++;
        endedRowsOf(output).forEach((row) => endedRows.add(row));
      },
      isWaiting: (row) => !endedRows.has(row),
      room: async () => {
        // Not in a loop: the message may report that the last row ended, and so the generator.
        if (running.unacknowledged >= STEPS_AHEAD) {
          await new Promise<void>((resolve) => (running.resume = resolve));
        }
      },
    };
  }

  private end(batch: number, ...[end, transfer = [], spare]: RunEnd): void {
    try {
      this.port.post({ batch, ...end }, transfer, spare);
    } catch (error) {
      this.endWithoutFaults(batch, end, transfer, error);
    }
  }

  /** A result that can't be cloned fails its row, and the batch only if no result can. */
  private endWithoutFaults(
    batch: number,
    end: BatchEnd,
    transfer: ArrayBuffer[],
    error: unknown,
  ): void {
    const output = 'output' in end ? sendableOutput(end.output) : undefined;
    try {
      if (!output) {
        throw error;
      }
      this.port.post({ batch, ...end, output }, transfer);
    } catch (fault) {
      this.port.post({ batch, error: toWire(fault) }, []);
    }
  }
}

class ModelRunner implements WorkerRunner {
  constructor(private readonly model: TensorModel) {}

  get loaded(): Loaded {
    return this.model.loaded;
  }

  async run({ feeds, hooks, turns }: FeedsRequest, listen: Listen): Promise<RunEnd> {
    const { model } = this;
    const tensors = unpackTensors(feeds, model.loaded.signature.inputs);
    const onHook = (name: string, value: unknown): void => listen(hooks, false).hook(name, value);
    const [reply, transfer] = packTensors(await model.run(tensors, hooks, onHook, turns));
    return [{ reply }, transfer, spareOf(tensors)];
  }

  forget(ids: readonly number[]): void {
    this.model.forget(ids);
  }
}

class FileRunner implements WorkerRunner {
  readonly loaded: Loaded = {};
  readonly isConcurrent: boolean;

  private constructor(private readonly functions: FactoryPartition) {
    this.isConcurrent = functions.capacity !== undefined;
  }

  static async open(
    { file, partition, options, keys, continuous }: FileTask,
    openers: Openers,
  ): Promise<FileRunner> {
    const factory = await importFactory(file);
    const open = openerOf(continuous, openers);
    return new FileRunner(await openFactory(open, factory, partition, options, keys));
  }

  async run({ rows, info }: RowsRequest, listen: Listen): Promise<RunEnd> {
    const plainRows = 'list' in rows;
    const listener = listen(info.hooks, plainRows);
    const result = await this.functions.runRows(unpackRows(rows), info, listener);
    if (result === STEPPED) {
      return [{ stepped: true }];
    }
    const [output, transfer] = packOutput(result.output, plainRows);
    return [{ output, metadata: result.metadata }, transfer];
  }

  forget(ids: readonly number[]): void {
    this.functions.forget?.(ids);
  }
}

async function importFactory(file: string): Promise<RunnerFactory> {
  const exports = (await importOf(file)) as { default?: unknown };
  // TypeScript compiled to CommonJS nests the default export one level deeper.
  const factory = isTranspiled(exports.default) ? exports.default.default : exports.default;
  if (typeof factory !== 'function') {
    throw new InvalidServingError(
      `${file} must have a default export: a function that returns the batch function; it has ` +
        typeof factory,
    );
  }
  return factory as RunnerFactory;
}

async function importOf(file: string): Promise<unknown> {
  try {
    return await import(/* webpackIgnore: true */ file);
  } catch (cause) {
    // Node puts the place in front of the stack, in a form without the message.
    const place = cause instanceof SyntaxError && /^(?:file:|\/)\S+:\d+/.exec(cause.stack ?? '');
    throw new ServingLoadError(`Cannot load ${place ? place[0] : file}: ${messageOf(cause)}`, {
      cause,
    });
  }
}

function isTranspiled(value: unknown): value is { readonly default?: unknown } {
  return typeof value === 'object' && value !== null && '__esModule' in value;
}

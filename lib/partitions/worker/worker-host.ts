import { InvalidServingError, toWire } from '../../errors.js';
import { Queue } from '../../streaming/queue.js';
import { FunctionPartition } from '../function.partition.js';
import { openModel } from '../onnx/onnx-model.js';
import { NotStartedError, type RunRows, STEPPED } from '../partition.js';
import { packOutput, unpackRows } from './transfer.js';
import {
  type BatchEnd,
  type BatchProgress,
  STEPS_AHEAD,
  type Loaded,
  type LoadResult,
  type WorkerReply,
  type WorkerRequest,
  type WorkerTask,
} from './worker-protocol.js';
import { type BatchFunctionFactory, endedRowsOf, type BatchListener } from '../batch-function.js';

/** The end of a revoked batch, whose callers have been answered. */
const REVOKED: BatchEnd = { error: toWire(new NotStartedError('The batch was revoked')) };

type BatchRequest = Extract<
  WorkerRequest,
  { readonly rows: unknown } | { readonly unreadable: unknown }
>;

type FileTask = Extract<WorkerTask, { readonly file: string }>;

/** The channel of a worker to the application and back. */
export interface Port {
  listen(onRequest: (request: WorkerRequest) => void): void;
  /** @throws when the message cannot be cloned */
  post(message: LoadResult | WorkerReply, transfer: readonly ArrayBuffer[]): void;
  /** Reports that the batch of that number begins; false when it was revoked, and must not run. */
  begin(batch: number): boolean;
  /** Ends the worker. */
  exit(): void;
}

/** Opens the session of a partition in its worker, and runs its batches one after the other. */
export class WorkerHost {
  private readonly requests = new Queue<BatchRequest>();
  /** The number of the batch that runs; the application counts in the same way. */
  private batch = -1;
  /** The rows of the batch for which no caller waits. */
  private endedRows = new Set<number>();
  /** The steps of the batch that were sent, and not acknowledged yet. */
  private unacknowledged = 0;
  /** Resumes a generator that waits for an acknowledgement. */
  private resume = (): void => {};

  constructor(
    private readonly task: WorkerTask,
    private readonly port: Port,
  ) {}

  async run(): Promise<void> {
    // Before the first await, so that no batch is missed.
    this.port.listen((request) => this.receive(request));
    const runRows = await this.open();
    if (!runRows) {
      return;
    }
    // A batch that was sent ahead waits in the queue.
    for await (const request of this.requests) {
      this.batch++;
      this.endedRows = new Set();
      this.unacknowledged = 0;
      const [end, transfer] = this.port.begin(this.batch)
        ? await this.answer(runRows, request)
        : [REVOKED];
      this.end(end, transfer);
    }
  }

  private receive(request: WorkerRequest): void {
    if ('rows' in request || 'unreadable' in request) {
      this.requests.push(request);
    } else if ('end' in request) {
      this.requests.end();
    } else if ('halt' in request) {
      this.port.exit();
    } else if (request.batch === this.batch) {
      if ('endedRows' in request) {
        request.endedRows.forEach((row) => this.endedRows.add(row));
      } else {
        this.unacknowledged -= request.acknowledged;
      }
      this.resume();
    }
  }

  private async open(): Promise<RunRows | undefined> {
    const { task } = this;
    try {
      const [runRows, loaded] = 'model' in task ? await openModel(task) : await openFile(task);
      this.port.post(loaded, []);
      return runRows;
    } catch (error) {
      this.port.post({ error: toWire(error) }, []);
      return undefined;
    }
  }

  private async answer(
    runRows: RunRows,
    request: BatchRequest,
  ): Promise<[BatchEnd, ArrayBuffer[]?]> {
    if ('unreadable' in request) {
      return [{ error: toWire(request.unreadable) }];
    }
    const { rows, info } = request;
    const plainRows = 'list' in rows;
    try {
      const result = await runRows(unpackRows(rows), info, this.listener(info.hooks, plainRows));
      if (result === STEPPED) {
        return [{ stepped: true }];
      }
      const [output, transfer] = packOutput(result.output, plainRows);
      return [{ output, metadata: result.metadata }, transfer];
    } catch (error) {
      return [{ error: toWire(error) }];
    }
  }

  private listener(hooks: readonly string[], plainRows: boolean): BatchListener {
    const report = (progress: BatchProgress): void =>
      this.port.post({ batch: this.batch, ...progress }, []);
    return {
      hooks,
      // Copied, not moved: the function may go on with the value.
      hook: (name, value) => report({ hook: name, value: packOutput(value, plainRows)[0] }),
      step: (output, metadata) => {
        report({ step: packOutput(output, true)[0], metadata });
        this.unacknowledged++;
        endedRowsOf(output).forEach((row) => this.endedRows.add(row));
      },
      isWaiting: (row) => !this.endedRows.has(row),
      room: async () => {
        // Not in a loop: the message may be that the last row has ended, and the generator with it.
        if (this.unacknowledged >= STEPS_AHEAD) {
          await new Promise<void>((resolve) => (this.resume = resolve));
        }
      },
    };
  }

  private end(end: BatchEnd, transfer: ArrayBuffer[] = []): void {
    const { batch } = this;
    try {
      this.port.post({ batch, ...end }, transfer);
    } catch (error) {
      // The end cannot be cloned.
      this.port.post({ batch, error: toWire(error) }, []);
    }
  }
}

async function openFile(task: FileTask): Promise<[RunRows, Loaded]> {
  const factory = await importFactory(task.file);
  const partition = new FunctionPartition(factory, task.partition, task.options);
  await partition.declare(task.keys);
  return [(...batch) => partition.runRows(...batch), {}];
}

async function importFactory(file: string): Promise<BatchFunctionFactory<unknown>> {
  const exports = (await import(/* webpackIgnore: true */ file)) as { default?: unknown };
  // A file that TypeScript compiled to CommonJS has its default export inside that of the module.
  const factory = isTranspiled(exports.default) ? exports.default.default : exports.default;
  if (typeof factory !== 'function') {
    throw new InvalidServingError(
      `${file} must have a default export: a function that returns the batch function; it has ` +
        typeof factory,
    );
  }
  return factory as BatchFunctionFactory<unknown>;
}

function isTranspiled(value: unknown): value is { readonly default?: unknown } {
  return typeof value === 'object' && value !== null && '__esModule' in value;
}

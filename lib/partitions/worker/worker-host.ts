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
import { type BatchFunctionFactory, endedRows, type BatchListener } from '../batch-function.js';

/** Its callers have been told already. */
const TAKEN_BACK: BatchEnd = { error: toWire(new NotStartedError('The batch was taken back')) };

type BatchRequest = Extract<
  WorkerRequest,
  { readonly rows: unknown } | { readonly unreadable: unknown }
>;

type FileTask = Extract<WorkerTask, { readonly file: string }>;

/** The way from a worker to the application and back. */
export interface Port {
  listen(hear: (request: WorkerRequest) => void): void;
  /** @throws when the message cannot be cloned */
  post(message: LoadResult | WorkerReply, transfer: readonly ArrayBuffer[]): void;
  /** Says that the batch of that number begins; false where it was taken back, and must not. */
  begin(batch: number): boolean;
  /** Ends the worker. */
  exit(): void;
}

/**
 * The work of a partition, where its session lives: opens it and runs batches, one after the other,
 * until no more will come.
 */
export class WorkerHost {
  private readonly requests = new Queue<BatchRequest>();
  /** Counts the batches, as the other side does. */
  private batch = -1;
  /** The rows of the batch that nobody waits for. */
  private over = new Set<number>();
  /** The steps of the batch that were sent, and not heard yet. */
  private unacknowledged = 0;
  /** Has the generator look again whether it may go on. */
  private wake = (): void => {};

  constructor(
    private readonly task: WorkerTask,
    private readonly port: Port,
  ) {}

  async run(): Promise<void> {
    // Listening before anything is awaited, so that no batch is missed.
    this.port.listen((request) => this.hear(request));
    const runRows = await this.open();
    if (!runRows) {
      return;
    }
    // A batch that was handed ahead waits in the queue.
    for await (const request of this.requests) {
      this.batch++;
      this.over = new Set();
      this.unacknowledged = 0;
      const [end, transfer] = this.port.begin(this.batch)
        ? await this.answer(runRows, request)
        : [TAKEN_BACK];
      this.end(end, transfer);
    }
  }

  private hear(request: WorkerRequest): void {
    if ('rows' in request || 'unreadable' in request) {
      this.requests.push(request);
    } else if ('end' in request) {
      this.requests.end();
    } else if ('halt' in request) {
      this.port.exit();
    } else if (request.batch === this.batch) {
      if ('over' in request) {
        request.over.forEach((row) => this.over.add(row));
      } else {
        this.unacknowledged -= request.heard;
      }
      this.wake();
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
    const tell = (news: BatchProgress): void => this.port.post({ batch: this.batch, ...news }, []);
    return {
      hooks,
      // What is said before the end is copied, since the function may go on with it.
      hook: (name, value) => tell({ hook: name, value: packOutput(value, plainRows)[0] }),
      step: (output, metadata) => {
        tell({ step: packOutput(output, true)[0], metadata });
        this.unacknowledged++;
        endedRows(output).forEach((row) => this.over.add(row));
      },
      isWaiting: (row) => !this.over.has(row),
      room: async () => {
        // Who leaves may be the last: whether anybody still waits is for the generator to see.
        if (this.unacknowledged >= STEPS_AHEAD) {
          await new Promise<void>((resolve) => (this.wake = resolve));
        }
      },
    };
  }

  private end(end: BatchEnd, transfer: ArrayBuffer[] = []): void {
    const { batch } = this;
    try {
      this.port.post({ batch, ...end }, transfer);
    } catch (error) {
      // It cannot be cloned, and that is how the batch ends.
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
  const { default: factory } = (await import(file)) as { default?: unknown };
  if (typeof factory !== 'function') {
    throw new InvalidServingError(
      `${file} must export as its default a function that returns the batch function, it exports ` +
        typeof factory,
    );
  }
  return factory as BatchFunctionFactory<unknown>;
}

import { toWire } from '../../errors.js';
import { Queue } from '../../streaming/queue.js';
import { type BatchListener, endedRowsOf } from '../batch-function.js';
import { NotStartedError } from '../partition.js';
import { FileSession } from './file.session.js';
import { ModelSession } from './model.session.js';
import { packOutput } from './transfer.js';
import {
  type BatchEnd,
  type BatchProgress,
  type FeedsRequest,
  type LoadResult,
  type RowsRequest,
  type SessionsEnd,
  STEPS_AHEAD,
  type WorkerReply,
  type WorkerRequest,
  type WorkerTask,
} from './worker-protocol.js';
import type { WorkerSession } from './worker-session.js';

/** The end of a revoked batch, whose callers have been answered. */
const REVOKED: BatchEnd = { error: toWire(new NotStartedError('The batch was revoked')) };

type BatchRequest = RowsRequest | FeedsRequest | { readonly unreadable: unknown };

type QueuedRequest = BatchRequest | SessionsEnd;

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
  private readonly requests = new Queue<QueuedRequest>();
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
    const session = await this.open();
    if (!session) {
      return;
    }
    // A batch that was sent ahead waits in the queue.
    for await (const request of this.requests) {
      if ('endedSessions' in request) {
        session.endSessions(request.endedSessions);
        continue;
      }
      this.batch++;
      this.endedRows = new Set();
      this.unacknowledged = 0;
      const [end, transfer] = this.port.begin(this.batch)
        ? await this.answer(session, request)
        : [REVOKED];
      this.end(end, transfer);
    }
  }

  private receive(request: WorkerRequest): void {
    if (
      'feeds' in request ||
      'rows' in request ||
      'unreadable' in request ||
      'endedSessions' in request
    ) {
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

  private async open(): Promise<WorkerSession | undefined> {
    const { task } = this;
    try {
      const session =
        'model' in task ? await ModelSession.open(task) : await FileSession.open(task);
      this.port.post(session.loaded, []);
      return session;
    } catch (error) {
      this.port.post({ error: toWire(error) }, []);
      return undefined;
    }
  }

  private async answer(
    session: WorkerSession,
    request: BatchRequest,
  ): Promise<[BatchEnd, ArrayBuffer[]?]> {
    if ('unreadable' in request) {
      return [{ error: toWire(request.unreadable) }];
    }
    try {
      return await session.run(request, (hooks, plainRows) => this.listener(hooks, plainRows));
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

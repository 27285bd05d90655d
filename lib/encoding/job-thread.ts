import { MessageChannel, type MessagePort, Worker, workerData } from 'node:worker_threads';
import { type AbortSignalLike, onAbort } from '../core/context/call-context.js';
import { fromWire, ServingUnavailableError, toWire, type WireError } from '../core/errors.js';

/** Milliseconds until an idle thread ends. */
const IDLE = 300_000;

/** A job or result, and memory moved with it. */
export interface Parcel<Content> {
  readonly content: Content;
  readonly moved: readonly ArrayBuffer[];
}

type Done<Result> = { readonly result: Result } | { readonly error: WireError };

interface Start<Given> {
  readonly given: Given;
  readonly port: MessagePort;
}

interface JobThreadOptions<Given> {
  readonly script: URL;
  /** Shown by debuggers. */
  readonly name: string;
  readonly given: Given;
  /** Error message if the thread ends during a job. */
  readonly lost: string;
}

interface WaitingJob<Job, Result> {
  readonly job: Parcel<Job>;
  readonly resolve: (result: Result) => void;
  readonly reject: (reason: unknown) => void;
  readonly stopListening: () => void;
}

interface Running {
  readonly worker: Worker;
  readonly port: MessagePort;
}

/**
 * A thread for work that would hold the event loop. It starts with a job, runs one at a time, and
 * ends after a long pause.
 */
export class JobThread<Job, Result, Given = undefined> {
  private readonly waiting = new Set<WaitingJob<Job, Result>>();
  private current: WaitingJob<Job, Result> | undefined;
  private running: Running | undefined;
  private idle: NodeJS.Timeout | undefined;

  constructor(private readonly options: JobThreadOptions<Given>) {}

  /**
   * @param signal drops the job unless it has begun
   * @param moved memory that the job gives away
   * @throws DataCloneError for a job that can't be sent
   * @throws what the work throws
   * @throws ServingUnavailableError if the thread ends meanwhile
   */
  run(content: Job, signal?: AbortSignalLike, moved: readonly ArrayBuffer[] = []): Promise<Result> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) {
        throw signal.reason;
      }
      const stopListening = onAbort(signal, (reason) => {
        this.waiting.delete(waiting);
        reject(reason);
      });
      const waiting = { job: { content, moved }, resolve, reject, stopListening };
      this.waiting.add(waiting);
      this.next();
    });
  }

  private next(): void {
    const [waiting] = this.waiting;
    if (this.current || !waiting) {
      return;
    }
    this.waiting.delete(waiting);
    this.current = waiting;
    clearTimeout(this.idle);
    const { worker, port } = (this.running ??= this.start());
    worker.ref();
    const { content, moved } = waiting.job;
    try {
      port.postMessage(content, [...moved]);
    } catch (cause) {
      this.finish(({ reject }) => reject(cause));
    }
  }

  private start(): Running {
    const { script, name, given, lost } = this.options;
    const { port1: port, port2 } = new MessageChannel();
    const worker = new Worker(script, {
      workerData: { given, port: port2 } satisfies Start<Given>,
      transferList: [port2],
      name,
    });
    let cause: unknown;
    worker.on('error', (error) => (cause = error));
    worker.once('exit', () => {
      port.close();
      if (this.running?.worker === worker) {
        this.running = undefined;
        this.finish(({ reject }) => reject(new ServingUnavailableError(lost, { cause })));
      }
    });
    port.on('message', (done: Done<Result>) =>
      this.finish(({ resolve, reject }) =>
        'error' in done ? reject(fromWire(done.error)) : resolve(done.result),
      ),
    );
    // The thread keeps the process alive only while it has a job.
    port.unref();
    return { worker, port };
  }

  private finish(answer: (job: WaitingJob<Job, Result>) => void): void {
    const { current, running } = this;
    this.current = undefined;
    if (current) {
      current.stopListening();
      answer(current);
    }
    this.next();
    if (running && !this.current) {
      running.worker.unref();
      // An unsent job has set one already.
      clearTimeout(this.idle);
      this.idle = setTimeout(() => {
        // The next job must start another thread.
        this.running = undefined;
        void running.worker.terminate();
      }, IDLE).unref();
    }
  }
}

type Work<Job, Result> = (job: Job) => Parcel<Result>;

/** Runs in the thread, which an error of `start` ends. */
export async function doJobs<Job, Result>(
  start: (given: unknown) => Work<Job, Result> | Promise<Work<Job, Result>>,
): Promise<void> {
  const { given, port } = workerData as Start<unknown>;
  const work = await start(given);
  port.on('message', (job: Job) => {
    try {
      const { content: result, moved } = work(job);
      port.postMessage({ result } satisfies Done<Result>, [...moved]);
    } catch (cause) {
      port.postMessage({ error: toWire(cause) } satisfies Done<Result>);
    }
  });
}

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

interface JobThreadOptions<Job, Given> {
  readonly script: URL;
  /** Shown by debuggers. */
  readonly name: string;
  readonly given: Given;
  /** Error message if the thread ends during a job. */
  readonly lost: string;
  /**
   * A job's share of a message: as many go together as make 1, since a message takes longer than a
   * small job.
   *
   * @default 1
   */
  readonly shareOf?: (job: Job) => number;
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
  isWarm: boolean;
}

/**
 * A thread for work that would hold the event loop. It starts with a job, runs one message's jobs
 * at a time, and ends after a long pause.
 */
export class JobThread<Job, Result, Given = undefined> {
  private readonly waiting = new Set<WaitingJob<Job, Result>>();
  private current: readonly WaitingJob<Job, Result>[] = [];
  private running: Running | undefined;
  private idle: NodeJS.Timeout | undefined;

  constructor(private readonly options: JobThreadOptions<Job, Given>) {}

  /** True once it has done a job, until it ends. */
  get isWarm(): boolean {
    return this.running?.isWarm === true;
  }

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

  /** Starts the thread with this job, unless it runs, and drops the result. */
  warmUp(content: Job): void {
    if (!this.running) {
      this.run(content).catch(() => {});
    }
  }

  private next(): void {
    if (this.current.length > 0 || this.waiting.size === 0) {
      return;
    }
    this.current = this.together();
    clearTimeout(this.idle);
    const { worker, port } = (this.running ??= this.start());
    worker.ref();
    const jobs = this.current.map(({ job }) => job);
    const contents = jobs.map(({ content }) => content);
    try {
      port.postMessage(
        contents,
        jobs.flatMap(({ moved }) => [...moved]),
      );
    } catch (cause) {
      this.finish(({ reject }) => reject(cause));
    }
  }

  /** Takes the jobs of the next message. */
  private together(): readonly WaitingJob<Job, Result>[] {
    const { shareOf = () => 1 } = this.options;
    const taken: WaitingJob<Job, Result>[] = [];
    let room = 1;
    for (const waiting of this.waiting) {
      room -= shareOf(waiting.job.content);
      if (taken.length > 0 && room < 0) {
        break;
      }
      this.waiting.delete(waiting);
      taken.push(waiting);
    }
    return taken;
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
    const running = { worker, port, isWarm: false };
    port.on('message', (all: readonly Done<Result>[]) => {
      running.isWarm = true;
      this.finish(({ resolve, reject }, index) => {
        const done = all[index]!;
        return 'error' in done ? reject(fromWire(done.error)) : resolve(done.result);
      });
    });
    // The thread keeps the process alive only while it has a job.
    port.unref();
    return running;
  }

  private finish(answer: (job: WaitingJob<Job, Result>, index: number) => void): void {
    const { current, running } = this;
    this.current = [];
    current.forEach((job, index) => {
      job.stopListening();
      answer(job, index);
    });
    this.next();
    if (running && this.current.length === 0) {
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
  port.on('message', (jobs: readonly Job[]) => {
    const moved: ArrayBuffer[] = [];
    const done = jobs.map((job): Done<Result> => {
      try {
        const parcel = work(job);
        moved.push(...parcel.moved);
        return { result: parcel.content };
      } catch (cause) {
        return { error: toWire(cause) };
      }
    });
    port.postMessage(done, moved);
  });
}

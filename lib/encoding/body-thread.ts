import type { AbortSignalLike } from '../core/context/call-context.js';
import { messageOf, OverloadedError } from '../core/errors.js';
import { log } from '../core/log.js';
import { scriptOfThread } from './entry-script.js';
import { type OwnBytes } from './http.js';
import { JobThread } from './job-thread.js';

interface WithBody {
  /** Owns its memory, which moves to the thread. */
  readonly body: OwnBytes;
}

/** Most bytes of waiting bodies. */
const MOST_WAITING = 256 * 2 ** 20;

/** Reads large bodies in a thread: parsing would hold the event loop. */
export class BodyThread<Job extends WithBody, Result> {
  private waiting = 0;
  private thread: JobThread<Job, Result> | 'none' | undefined;

  constructor(private readonly path: string) {}

  /**
   * Undefined in a bundled application, which lacks the thread's script.
   *
   * @throws OverloadedError if too much waits for the thread
   * @throws ServingUnavailableError if the thread ends
   */
  read(job: Job, signal: AbortSignalLike | undefined): Promise<Result> | undefined {
    this.thread ??= this.open();
    return this.thread === 'none' ? undefined : this.run(this.thread, job, signal);
  }

  private async run(
    thread: JobThread<Job, Result>,
    job: Job,
    signal: AbortSignalLike | undefined,
  ): Promise<Result> {
    const { buffer, length } = job.body;
    if (this.waiting + length > MOST_WAITING) {
      throw new OverloadedError(
        `Large requests of ${this.waiting} bytes wait to be read, and ${MOST_WAITING} is the most; ` +
          'call again later, or send less at once',
      );
    }
    this.waiting += length;
    try {
      return await thread.run(job, signal, [buffer]);
    } finally {
      this.waiting -= length;
    }
  }

  private open(): JobThread<Job, Result> | 'none' {
    const lost = 'The thread that reads large requests has ended';
    try {
      const script = scriptOfThread(this.path);
      return new JobThread({ script, name: 'serving requests', given: undefined, lost });
    } catch (cause) {
      log.warn(`Large JSON is parsed on the event loop, which it holds: ${messageOf(cause)}`);
      return 'none';
    }
  }
}

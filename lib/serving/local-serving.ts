import { type BeforeApplicationShutdown, Logger, type OnApplicationShutdown, type OnModuleInit } from '@nestjs/common';
import { Subject } from 'rxjs';
import { isServingError, messageOf, ServingClosedError, ServingLoadError } from '../errors.js';
import { type Engine, modelsLoaded } from '../partitions/engine.js';
import type { ServingKind } from '../partitions/handler.partition.js';
import { warningsOf } from '../partitions/model-signature.js';
import type { PartitionOptions } from '../partitions/partition.js';
import type { Callbacks } from './call.js';
import { ServingLine } from './line.js';
import type { ResolvedServing } from './resolve-definition.js';
import { Serving } from './serving.js';
import type { ServingEvent } from './serving-event.js';

/** A serving that owns its partitions: this is its life, and {@link ServingLine} its work. */
export class LocalServing<Input = unknown, Output = unknown>
  extends Serving<Input, Output>
  implements OnModuleInit, BeforeApplicationShutdown, OnApplicationShutdown
{
  readonly name: string;
  private readonly subject = new Subject<ServingEvent>();
  readonly events$ = this.subject.asObservable();
  private readonly logger = new Logger('Serving');
  private opening: Promise<ServingLine<Input, Output>> | undefined;
  private line: ServingLine<Input, Output> | undefined;
  /** For `run`: partitions of its own, so that it waits for no batch; opened when first needed. */
  private inline: Promise<ServingLine<Input, Output>> | undefined;
  private readonly runs = new Set<Promise<Output>>();
  private overrun: Promise<true> | undefined;
  private clock: NodeJS.Timeout | undefined;
  private ending: Promise<void> | undefined;

  constructor(
    private readonly options: ResolvedServing,
    private readonly callbacks: Callbacks,
    private readonly engine: Engine,
  ) {
    super();
    this.name = options.name;
  }

  override batchedRun(input: Input): Promise<Output> {
    return this.line ? this.line.batchedRun(input) : Promise.reject(this.notRunning());
  }

  override async run(input: Input): Promise<Output> {
    this.refuseOnceClosed();
    this.inline ??= this.open('inline', this.options.partitions.slice(0, 1));
    const line = await this.inline;
    const reply = line.run(input);
    this.runs.add(reply);
    return reply.finally(() => this.runs.delete(reply));
  }

  /** Loads every partition; resolves when the serving can be called. */
  async start(): Promise<void> {
    this.refuseOnceClosed();
    this.opening ??= this.open('process', this.options.partitions);
    this.line = await this.opening;
  }

  /** Takes no more calls; resolves when queued and running batches have ended as `drain` and `shutdown` say. */
  close(): Promise<void> {
    return (this.ending ??= this.end());
  }

  onModuleInit(): Promise<void> {
    return this.start();
  }

  /** Nest waits next for the clients of its servers, and some of them for rows that are queued here: the clock runs from now. */
  beforeApplicationShutdown(): void {
    const { drain, shutdown } = this.options;
    this.overrun ??= new Promise((resolve) => (this.clock = setTimeout(() => resolve(this.abandon()), shutdown)));
    if (drain) {
      this.line?.drain();
    } else {
      this.abandon();
    }
  }

  onApplicationShutdown(): Promise<void> {
    return this.close();
  }

  private async open(kind: ServingKind, partitions: readonly PartitionOptions[]): Promise<ServingLine<Input, Output>> {
    try {
      const opened = await this.engine(kind, partitions);
      if (kind === 'process') {
        warningsOf(opened.signature).forEach((warning) => this.logger.warn(`The model of serving "${this.name}" ${warning}`));
      }
      return new ServingLine(this.options, this.callbacks, opened, (event) => this.subject.next(event));
    } catch (cause) {
      // Whoever hears of this is likely to end the process.
      await modelsLoaded();
      throw this.loadError(cause);
    }
  }

  private loadError(cause: unknown): Error {
    if (!isServingError(cause)) {
      return new ServingLoadError(`Serving "${this.name}" could not start: ${messageOf(cause)}`, { cause });
    }
    const message = `Serving "${this.name}": ${cause.message}`;
    // What is printed of an error is its stack, which has the message in it.
    return Object.assign(cause, { message, stack: cause.stack?.replace(cause.message, () => message) });
  }

  private async end(): Promise<void> {
    this.beforeApplicationShutdown();
    const late = await Promise.race([this.release(), this.overrun]).finally(() => clearTimeout(this.clock));
    if (late) {
      this.logger.warn(
        `Serving "${this.name}" did not finish its batches within ${this.options.shutdown} ms of shutdown; what was queued is answered as closed`,
      );
    }
    this.subject.complete();
  }

  /** Ends the lines once their batches have run; one that is still opening, once it is open. */
  private async release(): Promise<void> {
    // The one at work is told first, and at once: it takes no more calls.
    const atWork = this.line;
    const closed = atWork?.close();
    const opened = await Promise.all([this.opening?.catch(() => undefined), this.inline?.catch(() => undefined)]);
    await Promise.allSettled(this.runs);
    await Promise.all([closed, ...opened.map((line) => (line === atWork ? undefined : line?.close()))]);
  }

  private abandon(): true {
    this.line?.abandon(new ServingClosedError(`Serving "${this.name}" was closed before the call could run`));
    return true;
  }

  private refuseOnceClosed(): void {
    if (this.ending) {
      throw new ServingClosedError(`Serving "${this.name}" is closed and takes no more calls`);
    }
  }

  private notRunning(): Error {
    return new ServingClosedError(
      `Serving "${this.name}" has not been started; the application starts it before it listens, elsewhere call start()`,
    );
  }
}

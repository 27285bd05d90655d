import type { Batcher } from '../batching/batcher.js';
import type { SharedCalls } from '../deduplication/shared-calls.js';
import { ServingClosedError } from '../errors.js';
import type { BatchRunner } from '../execution/batch-run.js';
import type { CallerSide } from '../execution/caller-side.js';
import type { BatchRequest } from '../execution/request.js';
import type { Partition } from '../partitions/partition.js';
import type { Pulls } from '../streaming/pull-ahead.js';
import type { Closable } from './shutdown.js';

/** Where the calls of a pipeline can be. */
export interface PipelineStages {
  readonly caller: CallerSide;
  readonly shared: SharedCalls | undefined;
  readonly pulls: Pulls;
  readonly batcher: Batcher<BatchRequest>;
  readonly runner: BatchRunner;
  readonly partitions: readonly Partition[];
}

/** Ends a pipeline: stage by stage with all its calls, or at once. */
export class PipelineShutdown implements Closable {
  private isClosed = false;
  private closing: Promise<void> | undefined;

  constructor(
    private readonly serving: string,
    private readonly stages: PipelineStages,
  ) {}

  /** @throws ServingClosedError once the pipeline takes no more calls */
  check(): void {
    if (this.isClosed) {
      throw this.closedError();
    }
  }

  /** Whether it has no call but those of readers that have their output still to read. */
  get isIdle(): boolean {
    const { shared, pulls, batcher } = this.stages;
    const { preparing, finishing } = this.stages.caller;
    const isShared = shared !== undefined && !shared.isIdle;
    return !isShared && preparing.size + finishing.size === 0 && pulls.isIdle && batcher.isIdle;
  }

  drain(): void {
    this.stages.batcher.drain();
  }

  close(): Promise<void> {
    return (this.closing ??= this.endStages());
  }

  abandon(error: Error): void {
    this.isClosed = true;
    this.stages.pulls.finishAll(error);
    this.stages.batcher.abandon(error);
  }

  end(error: Error): boolean {
    const { pulls, runner, batcher, partitions } = this.stages;
    const { preparing, finishing } = this.stages.caller;
    const hadCalls = preparing.size + finishing.size + pulls.size > 0;
    this.isClosed = true;
    runner.terminate(error);
    preparing.end(error);
    finishing.end(error);
    pulls.endAll(error);
    const hadBatches = batcher.end(error);
    partitions.forEach((partition) => partition.kill && partition.halt?.());
    return hadCalls || hadBatches;
  }

  halt(): void {
    this.stages.partitions.forEach((partition) => partition.halt?.());
  }

  unfinished(): readonly string[] {
    return this.stages.batcher.unfinished();
  }

  private async endStages(): Promise<void> {
    const { shared, pulls, batcher, partitions } = this.stages;
    const { preparing, finishing } = this.stages.caller;
    this.isClosed = true;
    this.drain();
    await shared?.idle();
    await preparing.idle();
    await pulls.close(this.closedError());
    await batcher.close();
    await Promise.all([finishing.idle(), ...partitions.map((partition) => partition.close())]);
  }

  private closedError(): Error {
    return new ServingClosedError(`Serving "${this.serving}" is closed and takes no more calls`);
  }
}

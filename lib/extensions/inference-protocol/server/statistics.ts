import type { Subscription } from 'rxjs';
import type { BatchEndEvent, CallEndEvent } from '../../../index.js';
import { DEFAULT_VERSION } from '../../../doors/options.js';
import type { OfferedModel } from './offered-models.js';

export interface Duration {
  count: number;
  ns: number;
}

const STAGES = [
  'success',
  'fail',
  'queue',
  'compute_input',
  'compute_infer',
  'compute_output',
  'cache_hit',
  'cache_miss',
] as const;

/** Clients expect every field. */
export interface ModelStatistics {
  readonly name: string;
  readonly version: string;
  /** Milliseconds since 1970. */
  readonly last_inference: number;
  /** Excludes cache hits. */
  readonly inference_count: number;
  readonly execution_count: number;
  readonly inference_stats: Readonly<Record<(typeof STAGES)[number], Duration>>;
  readonly batch_stats: readonly BatchStatistics[];
  readonly response_stats: Readonly<Record<string, never>>;
  readonly memory_usage: readonly never[];
}

export interface BatchStatistics {
  readonly batch_size: number;
  readonly compute_input: Duration;
  readonly compute_infer: Duration;
  readonly compute_output: Duration;
}

/**
 * Includes the application's own calls. Follows
 * https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_statistics.md
 */
export class StatisticsOfModel {
  private readonly byVersion = new Map<string, StatisticsOfVersion>();
  private hasCache = false;

  observe({ own, profile }: OfferedModel): Subscription | undefined {
    this.hasCache = profile?.hasCache ?? false;
    // A test's stand-in may have no events.
    const subscription = own
      .eventsOf?.('call:end')
      .subscribe((event) => this.countsOf(event.version).ended(event));
    subscription?.add(
      own.eventsOf('batch:end').subscribe((event) => this.countsOf(event.version).ran(event)),
    );
    return subscription;
  }

  of({ name, versions }: OfferedModel, version = ''): readonly ModelStatistics[] {
    for (const label of this.byVersion.keys()) {
      if (!versions.includes(label)) {
        this.byVersion.delete(label);
      }
    }
    const asked = version === '' ? versions : [version];
    return asked.map((label) => this.countsOf(label).of(name, label));
  }

  /** Events from other nodes have no version. */
  private countsOf(version = DEFAULT_VERSION): StatisticsOfVersion {
    const known = this.byVersion.get(version);
    if (known) {
      return known;
    }
    const counts = new StatisticsOfVersion(this.hasCache);
    this.byVersion.set(version, counts);
    return counts;
  }
}

class StatisticsOfVersion {
  private readonly stages = Object.fromEntries(STAGES.map((stage) => [stage, none()])) as Readonly<
    Record<(typeof STAGES)[number], Duration>
  >;
  private readonly batches = new Map<number, Duration>();
  private lastInference = 0;
  private rows = 0;
  private runs = 0;

  constructor(private readonly hasCache: boolean) {}

  of(name: string, version: string): ModelStatistics {
    return {
      name,
      version,
      last_inference: this.lastInference,
      inference_count: this.rows,
      execution_count: this.runs,
      inference_stats: this.stages,
      batch_stats: Array.from(this.batches, ([size, run]) => ({
        batch_size: size,
        compute_input: { count: run.count, ns: 0 },
        compute_infer: run,
        compute_output: { count: run.count, ns: 0 },
      })),
      response_stats: {},
      memory_usage: [],
    };
  }

  ended(event: CallEndEvent): void {
    const { stages } = this;
    const { preprocessing, waiting, running, postprocessing } = event;
    const total = preprocessing + waiting + running + postprocessing;
    if ('error' in event) {
      add(stages.fail, total);
      return;
    }
    this.lastInference = Math.floor(event.startedAt + total);
    add(stages.success, total);
    if (event.answeredBy === 'cache') {
      add(stages.cache_hit, total);
      return;
    }
    this.rows += event.rows;
    add(stages.queue, waiting);
    add(stages.compute_input, preprocessing);
    add(stages.compute_infer, running);
    add(stages.compute_output, postprocessing);
    if (this.hasCache) {
      add(stages.cache_miss, total);
    }
  }

  ran({ rows, runTime, revoked, error }: BatchEndEvent): void {
    if (revoked || error !== undefined) {
      return;
    }
    this.runs++;
    const size = this.batches.get(rows) ?? none();
    this.batches.set(rows, size);
    add(size, runTime);
  }
}

function none(): Duration {
  return { count: 0, ns: 0 };
}

function add(duration: Duration, milliseconds: number): void {
  duration.count++;
  duration.ns += Math.round(milliseconds * 1e6);
}

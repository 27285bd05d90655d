import type { AbortSignalLike } from '../context/call-context.js';
import type { AnsweredBy, CallMode, CallStage } from './serving-event.js';
import type { EventHub } from './event-hub.js';

/** The call failed before it reached a pipeline. */
export function countRefusal(
  events: EventHub,
  serving: string,
  mode: CallMode,
  error: unknown,
  signal: AbortSignalLike | undefined,
): void {
  countEnd(events, CallRecorder.start(events, serving, mode, signal), { error }, signal);
}

export function countEnd(
  { counters }: EventHub,
  recorder: CallRecorder | undefined,
  failure: { readonly error: unknown } | undefined,
  signal: AbortSignalLike | undefined,
): void {
  counters.ended(failure, signal);
  recorder?.ended(failure);
}

export class CallRecorder {
  private readonly startedAt = performance.now();
  private queuedAt: number | undefined;
  private ranAt: number | undefined;
  private answeredAt: number | undefined;
  private rows = 0;
  /** Calls that share the rows. */
  private others: CallRecorder[] | undefined;

  private constructor(
    private readonly events: EventHub,
    private readonly serving: string,
    readonly call: number,
    private readonly mode: CallMode,
    private readonly signal: AbortSignalLike | undefined,
  ) {
    events.emit({ type: 'call:start', serving, version: events.version, call, mode });
  }

  static start(
    events: EventHub,
    serving: string,
    mode: CallMode,
    signal: AbortSignalLike | undefined,
  ): CallRecorder | undefined {
    return events.observesCalls
      ? new CallRecorder(events, serving, events.nextCall(), mode, signal)
      : undefined;
  }

  queued(rows: number): void {
    this.queuedAt ??= performance.now();
    this.rows += rows;
    this.others?.forEach((other) => other.queued(0));
  }

  running(): void {
    this.ranAt ??= performance.now();
    this.others?.forEach((other) => other.running());
  }

  /** Passes stages on to a call without its own rows. */
  joinedBy(other: CallRecorder): void {
    (this.others ??= []).push(other);
    if (this.queuedAt !== undefined) {
      other.queued(0);
    }
    if (this.ranAt !== undefined) {
      other.running();
    }
  }

  get calls(): readonly number[] {
    return this.others ? [this.call, ...this.others.map(({ call }) => call)] : [this.call];
  }

  answered(): void {
    this.answeredAt = performance.now();
  }

  async follow<T>(answer: Promise<T>): Promise<T> {
    try {
      const value = await answer;
      this.ended();
      return value;
    } catch (error) {
      this.ended({ error });
      throw error;
    }
  }

  ended(outcome: { readonly error?: unknown; readonly answeredBy?: AnsweredBy } = {}): void {
    const { events, serving, call, mode, rows, startedAt, signal } = this;
    const isCancelled = 'error' in outcome && signal?.aborted && outcome.error === signal.reason;
    const endedAt = performance.now();
    // Stages not reached took no time; the last one reached took the rest.
    const answeredAt = this.answeredAt ?? endedAt;
    const ranAt = this.ranAt ?? answeredAt;
    const queuedAt = this.queuedAt ?? ranAt;
    events.emit({
      type: 'call:end',
      serving,
      version: events.version,
      call,
      mode,
      rows,
      startedAt: performance.timeOrigin + startedAt,
      preprocessing: queuedAt - startedAt,
      waiting: ranAt - queuedAt,
      running: answeredAt - ranAt,
      postprocessing: endedAt - answeredAt,
      stage: this.stage,
      ...outcome,
      ...(isCancelled && { cancelled: true }),
    });
  }

  private get stage(): CallStage {
    if (this.answeredAt !== undefined) {
      return 'postprocessing';
    }
    if (this.ranAt !== undefined) {
      return 'running';
    }
    return this.queuedAt === undefined ? 'preprocessing' : 'waiting';
  }
}

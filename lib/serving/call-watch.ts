import type { CallMode, CallStage } from './serving-event.js';
import type { ServingEvents } from './serving-events.js';

/** Notes when a call passes the stages of the line, and tells it at the end. */
export class CallWatch {
  private readonly startedAt = performance.now();
  private queuedAt: number | undefined;
  private ranAt: number | undefined;
  private answeredAt: number | undefined;
  private rows = 0;

  private constructor(
    private readonly events: ServingEvents,
    private readonly serving: string,
    readonly call: number,
    private readonly mode: CallMode,
  ) {
    events.emit({ type: 'call:start', serving, call, mode });
  }

  /** A watch over one more call, where somebody observes calls. */
  static over(events: ServingEvents, serving: string, mode: CallMode): CallWatch | undefined {
    return events.observesCalls ? new CallWatch(events, serving, events.nextCall(), mode) : undefined;
  }

  queued(rows: number): void {
    this.queuedAt ??= performance.now();
    this.rows += rows;
  }

  running(): void {
    this.ranAt ??= performance.now();
  }

  answered(): void {
    this.answeredAt = performance.now();
  }

  /** The answer, whose end it tells. */
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

  ended(failure: { readonly error?: unknown } = {}): void {
    const { events, serving, call, mode, rows, startedAt } = this;
    const endedAt = performance.now();
    // A stage that was not reached took no time, and the one before it all that was left.
    const answeredAt = this.answeredAt ?? endedAt;
    const ranAt = this.ranAt ?? answeredAt;
    const queuedAt = this.queuedAt ?? ranAt;
    events.emit({
      type: 'call:end',
      serving,
      call,
      mode,
      rows,
      startedAt: performance.timeOrigin + startedAt,
      preprocessing: queuedAt - startedAt,
      waiting: ranAt - queuedAt,
      running: answeredAt - ranAt,
      postprocessing: endedAt - answeredAt,
      stage: this.stage,
      ...failure,
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

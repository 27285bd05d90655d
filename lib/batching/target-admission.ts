import { OverloadedError, withoutStack } from '../errors.js';
import { Admission, type PoolLoad } from './admission.js';
import { type BatchesAhead, LatencyTarget } from './latency-target.js';
import type { Limits, QueuedRequest } from './queued-request.js';

/**
 * The admission of a serving with latency targets: also refuses at once a call that could not be
 * answered within the target of its lane, and sizes batches by it.
 */
export class TargetAdmission extends Admission {
  private readonly targets = new Map<Limits, LatencyTarget>();

  override learn(limits: Limits, rows: number, milliseconds: number): void {
    const target = this.targetOf(limits);
    if (target) {
      target.learn(rows, milliseconds);
    } else {
      super.learn(limits, rows, milliseconds);
    }
  }

  override sizeOf(limits: Limits, opened = limits.batchSize): number {
    return this.targetOf(limits)?.size ?? opened;
  }

  override targetOf(limits: Limits): LatencyTarget | undefined {
    const { latencyTarget } = limits;
    if (latencyTarget === undefined) {
      return undefined;
    }
    let target = this.targets.get(limits);
    if (!target) {
      target = new LatencyTarget(limits, latencyTarget, this.knownOf(limits).model);
      this.targets.set(limits, target);
    }
    return target;
  }

  /** @throws OverloadedError for a call that would miss its target */
  protected override check(request: QueuedRequest, now: number, work: PoolLoad): void {
    const target = this.targetOf(request.lane.limits);
    target?.arrived(request.size, now, work.partitions);
    super.check(request, now, work);
    if (target) {
      this.checkTarget(target, request, now, work);
    }
  }

  /**
   * A call that finds an idle partition and an empty queue is always admitted: its run may show
   * that batch times have changed.
   */
  private checkTarget(
    target: LatencyTarget,
    request: QueuedRequest,
    now: number,
    work: PoolLoad,
  ): void {
    if (work.idle > 0 && this.rows === 0) {
      return;
    }
    const { milliseconds } = target;
    const ahead = this.batchesAhead(request);
    const needed = ahead && target.timeToAnswer(work.busyUntil(now), ahead);
    if (needed === undefined || needed <= milliseconds) {
      return;
    }
    const message =
      `Serving "${this.options.name}" would need about ${Math.ceil(needed)} ms to answer and has ` +
      `a latencyTarget of ${milliseconds} ms; call again later`;
    const retryAfter = Math.max(1, Math.ceil((needed - milliseconds) / 1000));
    throw withoutStack(() => new OverloadedError(message, { retryAfter }));
  }

  /** The batches that run before the last row of the request; undefined while too little is known. */
  private batchesAhead(request: QueuedRequest): BatchesAhead | undefined {
    const own = request.lane.limits;
    const share = this.rows === 0 ? 0 : this.rowsAhead(request) / this.rows;
    const ahead = { batches: 0, time: 0 };
    for (const [limits, { rows }] of this.known) {
      const size = this.sizeOf(limits);
      const before = rows * share;
      const batches =
        limits === own ? Math.floor((before + request.size - 1) / size) : Math.ceil(before / size);
      const time = batches === 0 ? 0 : this.timeOf(limits, size);
      if (time === undefined) {
        return undefined;
      }
      ahead.batches += batches;
      ahead.time += batches * time;
    }
    return ahead;
  }
}

import { type Budget, Fill, loadOf } from './budget.js';
import type { Lane, Part, QueuedRequest } from './queued-request.js';
import { OpenWindow } from './windows.js';

/** An open window whose rows may cost no more than a batch may. */
export class CostedWindow<R extends QueuedRequest> extends OpenWindow<R> {
  private readonly fill: Fill;

  constructor(lane: Lane, size: number, budget: Budget) {
    super(lane, size);
    this.fill = new Fill(budget, size);
  }

  override fits(request: R, row: number): boolean {
    return this.fill.fits(loadOf(request, row, 1));
  }

  override get isSpent(): boolean {
    return this.fill.isFull;
  }

  override add(part: Part<R>): void {
    super.add(part);
    this.fill.add(loadOf(part.request, part.offset, part.count));
  }

  override leave(request: R): void {
    // Its rows in this window are the last that it submitted.
    this.fill.remove(loadOf(request, request.size - request.open, request.open));
    super.leave(request);
  }

  override freeFor(request: R, offset: number): number {
    return this.fill.fitting(request, offset, super.freeFor(request, offset));
  }

  override hasRoomFor(request: R): boolean {
    const { size } = request;
    return super.hasRoomFor(request) && this.fill.fitting(request, 0, size) === size;
  }
}

import type { Origin } from '../partitions/partition.js';
import { batchingOf } from '../serving/option-rules.js';
import type { BatchedOptions, MethodLane } from './batched-method.js';

/** The lanes of one method: calls batch with those to the same instance, and of the same origin where that is asked for. */
export class MethodLanes {
  private readonly lanes = new WeakMap<object, Map<Origin | undefined, MethodLane>>();
  private readonly limits: MethodLane['limits'];

  constructor(options: BatchedOptions) {
    this.limits = batchingOf(options);
  }

  laneOf(owner: object, origin: Origin | undefined): MethodLane {
    const ofOwner = this.lanes.get(owner) ?? new Map<Origin | undefined, MethodLane>();
    let lane = ofOwner.get(origin);
    if (!lane) {
      lane = { origin, limits: this.limits };
      this.lanes.set(owner, ofOwner.set(origin, lane));
    }
    return lane;
  }
}

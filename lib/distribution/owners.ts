import type { ServedInfo } from './node-info.js';
import type { Address } from './transport.js';

/** A node that answers calls of a serving. */
export interface Owner {
  /** The id of the node. */
  readonly id: string;
  readonly address: Address;
  /** Weight × partitions: twice as much is twice as many calls. Always more than 0. */
  readonly share: number;
  /** What the last beat of the node says; the next one may say something else. */
  readonly served: ServedInfo;
}

/** Who may be picked for the calls of a serving. That never changes: when others may be picked, there are other `Owners`. */
export class Owners {
  /** Ends of the parts of all shares that are the owners', one after the other. */
  private readonly ends: Float64Array;
  private readonly total: number;

  constructor(readonly list: readonly Owner[]) {
    this.ends = new Float64Array(list.length);
    let total = 0;
    list.forEach(({ share }, index) => (this.ends[index] = total += share));
    this.total = total;
  }

  /** The one in whose part of all shares the point lies, which is from 0 up to 1. */
  at(point: number): Owner | undefined {
    const { ends } = this;
    const place = point * this.total;
    let from = 0;
    // Rounding may bring the place to the very end, which is the last one's.
    let to = ends.length - 1;
    while (from < to) {
      const middle = (from + to) >>> 1;
      if (ends[middle]! > place) {
        to = middle;
      } else {
        from = middle + 1;
      }
    }
    return this.list[from];
  }

  without(isExcluded: (owner: Owner) => boolean): Owners {
    return new Owners(this.list.filter((owner) => !isExcluded(owner)));
  }
}

import type { Partition } from '../partitions/partition.js';

/** Where those wait who want a partition that is away. */
export class Comeback {
  private readonly waiting: (() => void)[] = [];

  constructor(private readonly partition: Partition) {
    // One listener for all of them, since a partition forgets none.
    partition.onChange?.(() => {
      if (!this.isAwaited) {
        this.waiting.splice(0).forEach((goOn) => goOn());
      }
    });
  }

  /** Resolves when the partition takes batches, or will not soon. */
  async reached(): Promise<void> {
    if (this.isAwaited) {
      await new Promise<void>((resolve) => this.waiting.push(resolve));
    }
  }

  private get isAwaited(): boolean {
    const { away, lost } = this.partition;
    return away !== undefined && !lost;
  }
}

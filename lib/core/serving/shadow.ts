import { type Difference, differencesOf } from '../batch/compare.js';
import { copyInput, deepCopy } from '../batch/deep-copy.js';
import type { CallOptions } from '../context/call-options.js';
import type { LoadedVersion } from './loaded-version.js';
import type { ShadowComparison } from './serving-version.js';

/** The most copies that run at a time. */
const MOST_COPIES = 32;

/** The lowest priority of a call. */
const LOWEST = -10;

/**
 * Runs copies of calls on a version that answers none of them, and compares the replies. A copy runs
 * only while nothing waits, and its failure is counted.
 */
export class Shadow {
  private readonly copies = new Set<Promise<void>>();
  private readonly totals = { compared: 0, different: 0, failed: 0, dropped: 0 };
  private elements = 0;
  private differing = 0;
  private largest = 0;

  constructor(private readonly version: LoadedVersion) {}

  get comparison(): ShadowComparison {
    const { elements, differing, largest, totals } = this;
    return {
      ...totals,
      differing: elements === 0 ? 0 : differing / elements,
      largestDifference: largest,
    };
  }

  /**
   * Copies the input of a call that is in the share, before it runs on the active version. Returns a
   * function for its reply.
   */
  sample(
    input: unknown,
    { key, origin }: CallOptions,
    active: LoadedVersion,
  ): ((reply: Promise<unknown>) => void) | undefined {
    if (Math.random() >= this.version.share) {
      return undefined;
    }
    const { copies, version, totals } = this;
    const isBusy = active.queued + version.queued > 0 || copies.size >= MOST_COPIES;
    const copy = isBusy ? input : copyInput(input);
    const isCopied = copy !== input || typeof input !== 'object';
    if (isBusy || !isCopied) {
      // What cannot be copied, such as an iterator, has one reader.
      totals.dropped++;
      return undefined;
    }
    return (reply) => {
      const kept = reply.then((answer) => ({ answer: deepCopy(answer) }));
      const run = version.pipeline!.run(copy, { priority: LOWEST, key, origin });
      const compared = this.compare(kept, run);
      copies.add(compared);
      void compared.then(() => copies.delete(compared));
    };
  }

  /** Resolves when no copy runs. */
  async idle(): Promise<void> {
    await Promise.all(this.copies);
  }

  private async compare(
    kept: Promise<{ readonly answer: unknown }>,
    run: Promise<unknown>,
  ): Promise<void> {
    const { totals } = this;
    const [before, after] = await Promise.allSettled([kept, run]);
    if (before.status === 'rejected') {
      // Without a reply there is nothing to compare with.
      totals.dropped++;
      return;
    }
    if (after.status === 'rejected') {
      totals.failed++;
      return;
    }
    try {
      this.add(differencesOf(after.value, before.value.answer));
    } catch {
      // A reply may hold objects that throw when they are read.
      totals.dropped++;
    }
  }

  private add({ elements, differing, largest }: Difference): void {
    this.totals.compared++;
    this.totals.different += differing > 0 ? 1 : 0;
    this.elements += elements;
    this.differing += differing;
    this.largest = Math.max(this.largest, largest);
  }
}

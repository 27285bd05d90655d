import { healthOf } from '../../serving/health.js';
import { LocalServing } from '../../serving/local-serving.js';
import type { Serving } from '../../serving/serving.js';
import { LONGEST_NAME, type ServingStatus } from '../membership/node-info.js';
import type { ExportedServing } from './exported-serving.js';
import { RemoteServing } from './remote-serving.js';
import type { RemotePreprocess } from '../../serving/serving-router.js';

/** So much the newest batch counts in the average. */
const NEWEST = 0.1;

/** The servings of this node that others may call. */
export class ExportedServings {
  /** Milliseconds that a batch runs, on average over the last ones. */
  private readonly runTimes = new Map<string, number>();

  /** `servings` are those of the application, by name, whenever it is asked. */
  constructor(private readonly servings: () => ReadonlyMap<string, Serving>) {}

  /** All servings that this node runs, offered or not. */
  get local(): readonly LocalServing[] {
    return [...this.servings().values()].filter((serving) => serving instanceof LocalServing);
  }

  find(name: string): ExportedServing | undefined {
    const serving = this.servings().get(name);
    return serving && isOffered(serving)
      ? { serving, postprocess: termsOf(serving).postprocess }
      : undefined;
  }

  names(): readonly string[] {
    return [...this.servings()]
      .filter(([name, serving]) => isOffered(serving) && name.length <= LONGEST_NAME)
      .map(([name]) => name);
  }

  preprocessingOf(name: string): RemotePreprocess | undefined {
    const serving = this.servings().get(name);
    return serving && termsOf(serving).preprocess;
  }

  /** Follows how long their batches run, from now on. */
  watch(): void {
    for (const name of this.names()) {
      this.servings()
        .get(name)
        ?.eventsOf?.('batch:end')
        .subscribe(({ runTime }) => {
          const average = this.runTimes.get(name) ?? runTime;
          this.runTimes.set(name, average + NEWEST * (runTime - average));
        });
    }
  }

  /**
   * How each of them is, for a beat; `inflight` tells the calls of other nodes that are under way.
   */
  all(inflight: (name: string) => number): readonly ServingStatus[] {
    return this.names().map((name) => {
      const serving = this.servings().get(name)!;
      const { queued, partitions, isReady } = healthOf(name, serving);
      const { weight, idempotent } = termsOf(serving);
      const working = partitions.filter(({ state }) => state === 'up').length;
      return {
        name,
        weight,
        partitions: partitions.length === 0 ? 1 : working,
        inflight: inflight(name),
        queued,
        ewmaMs: this.runTimes.get(name) ?? 0,
        idempotent,
        isReady,
      };
    });
  }
}

/** A handle that a test puts in place of a serving has none of its own. */
function termsOf(serving: Serving): Partial<LocalServing['distribution']> & {
  readonly weight: number;
  readonly idempotent: boolean;
} {
  return serving instanceof LocalServing ? serving.distribution : { weight: 1, idempotent: false };
}

function isOffered(serving: Serving): boolean {
  return serving instanceof LocalServing
    ? serving.distribution.enabled
    : !(serving instanceof RemoteServing);
}

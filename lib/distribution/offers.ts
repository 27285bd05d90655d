import { healthOf } from '../serving/health.js';
import { LocalServing } from '../serving/local-serving.js';
import type { Serving } from '../serving/serving.js';
import type { Doing } from './incoming.js';
import type { ServedInfo } from './node-info.js';
import { type DistributedPreprocessing, RemoteServing } from './remote-serving.js';
import type { Offer } from './served-call.js';

/** The servings of this node that others may call. */
export class Offers {
  /** `servings` are those of the application, by name, whenever it is asked. */
  constructor(private readonly servings: () => ReadonlyMap<string, Serving>) {}

  find(name: string): Offer | undefined {
    const serving = this.servings().get(name);
    return serving && isOffered(serving) ? { serving, postprocess: termsOf(serving).postprocess } : undefined;
  }

  names(): readonly string[] {
    return [...this.servings()].filter(([, serving]) => isOffered(serving)).map(([name]) => name);
  }

  preprocessingOf(name: string): DistributedPreprocessing | undefined {
    const serving = this.servings().get(name);
    return serving && termsOf(serving).preprocess;
  }

  /** How each of them is, for a beat. */
  all(doingOf: (name: string) => Doing): readonly ServedInfo[] {
    return this.names().map((name) => {
      const serving = this.servings().get(name)!;
      const { queued, partitions, isReady } = healthOf(name, serving);
      const { weight, idempotent } = termsOf(serving);
      const working = partitions.filter(({ state }) => state === 'up').length;
      return { name, weight, partitions: partitions.length === 0 ? 1 : working, queued, idempotent, isReady, ...doingOf(name) };
    });
  }
}

/** A handle that a test puts in place of a serving has none of its own. */
function termsOf(
  serving: Serving,
): Partial<LocalServing['distribution']> & { readonly weight: number; readonly idempotent: boolean } {
  return serving instanceof LocalServing ? serving.distribution : { weight: 1, idempotent: false };
}

function isOffered(serving: Serving): boolean {
  return serving instanceof LocalServing ? serving.distribution.isShared : !(serving instanceof RemoteServing);
}

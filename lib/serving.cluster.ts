import type { Provider } from '@nestjs/common';
import type { Cluster } from './distribution/cluster.js';
import type { DistributionOptions } from './distribution/options.js';
import { getServingToken } from './serving.decorator.js';
import { SERVING_MODULE_OPTIONS, type ServingModuleOptions } from './serving.module-definition.js';
import { ServingRegistry } from './serving-registry.js';

/** The injection token of this node among the others; there is none where the module has no option `distribution`. */
export const CLUSTER = Symbol('serving cluster');

/** The names of the servings of other nodes that can be injected here. */
export function remoteNamesIn(distribution: DistributionOptions | undefined): readonly string[] {
  return (distribution?.remotes ?? []).map((remote) => (typeof remote === 'string' ? remote : remote.name));
}

/** A serving that other nodes own, by its name. */
export function remoteProvider(name: string): Provider {
  return {
    provide: getServingToken(name),
    inject: [CLUSTER],
    useFactory: (cluster: Cluster) => cluster.serving(name),
  };
}

/** Loads what distribution needs only where it is wanted. */
export const clusterProvider: Provider = {
  provide: CLUSTER,
  inject: [SERVING_MODULE_OPTIONS, ServingRegistry],
  useFactory: async ({ distribution }: ServingModuleOptions, registry: ServingRegistry): Promise<Cluster | undefined> => {
    if (!distribution) {
      return undefined;
    }
    const { openCluster } = await import('./distribution/open-cluster.js');
    return openCluster(distribution, () => registry.all);
  },
};

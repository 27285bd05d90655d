import type { Provider } from '@nestjs/common';
import type { Cluster } from './distribution/cluster.js';
import type { DistributionOptions } from './distribution/options.js';
import { InvalidServingError } from './errors.js';
import { getServingToken } from './serving.decorator.js';
import { SERVING_MODULE_OPTIONS, type ServingModuleOptions } from './serving.module-definition.js';
import { ServingRegistry } from './serving.registry.js';
import { formatValue } from './format.js';

/**
 * The injection token of this node among the others; there is none where the module has no option
 * `distribution`.
 */
export const CLUSTER = Symbol('serving cluster');

/**
 * The names of the servings of other nodes that can be injected here.
 *
 * @throws InvalidServingError for what is no name
 */
export function remoteNamesIn(distribution: DistributionOptions | undefined): readonly string[] {
  const remotes: unknown = distribution?.remotes ?? [];
  return Array.isArray(remotes) ? remotes.map(nameOf) : refuse(remotes);
}

function nameOf(remote: unknown): string {
  const name: unknown =
    typeof remote === 'object' && remote !== null && 'name' in remote ? remote.name : remote;
  return typeof name === 'string' && name !== '' ? name : refuse(remote);
}

function refuse(remote: unknown): never {
  throw new InvalidServingError(
    'ServingModule, option "distribution": "remotes" is a list of names, or of objects with a ' +
      `name, not ${formatValue(remote)}`,
  );
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
  useFactory: async (
    { distribution }: ServingModuleOptions,
    registry: ServingRegistry,
  ): Promise<Cluster | undefined> => {
    if (!distribution) {
      return undefined;
    }
    try {
      const { openCluster } = await import('./distribution/open-cluster.js');
      return await openCluster(distribution, () => registry.all);
    } catch (cause) {
      throw isMissing(cause)
        ? new InvalidServingError(
            'ServingModule, option "distribution": a package that it needs is not installed. ' +
              cause.message,
            {
              cause,
            },
          )
        : cause;
    }
  },
};

function isMissing(error: unknown): error is Error {
  return error instanceof Error && 'code' in error && error.code === 'ERR_MODULE_NOT_FOUND';
}

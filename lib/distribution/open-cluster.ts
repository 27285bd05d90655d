import { InvalidServingError } from '../errors.js';
import type { Serving } from '../serving/serving.js';
import { show } from '../show.js';
import { Cluster } from './cluster.js';
import { Offers } from './offers.js';
import { type DistributionOptions, resolveDistribution } from './options.js';
import type { ServingTransport } from './transport.js';

/** This node, not started yet; Nest does that with its hooks. */
export function openCluster(options: DistributionOptions, servings: () => ReadonlyMap<string, Serving>): Cluster {
  const resolved = resolveDistribution(options);
  return new Cluster(resolved, transportOf(options), new Offers(servings));
}

function transportOf({ transport }: DistributionOptions): ServingTransport {
  if (typeof transport === 'object' && transport !== null && 'broadcast' in transport) {
    return transport;
  }
  throw new InvalidServingError(
    `ServingModule, option "distribution": transport ${show(transport)} does not carry servings; ` +
      'allowed are Transport.TCP, NATS, REDIS and GRPC, and objects that are a ServingTransport',
  );
}

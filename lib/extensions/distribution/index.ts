/**
 * `ServingClusterModule`: servings on other nodes, over Nest's microservice transports.
 *
 * @module distribution
 */

export type { Candidate, ChooseNode } from './membership/balancer.js';
export type { ClusterNode } from '../../doors/servings.js';
export { MemoryNetwork, type MemoryTransport } from './memory-network.js';
export type { DistributionOptions } from './options.js';
export type { CustomTransport } from './transports/transports.js';
export { ServingCluster } from './serving-cluster.js';
export { ServingClusterModule } from './serving-cluster.module.js';
export {
  type Address,
  type JsonHandler,
  NodeGoneError,
  type Receiver,
  type ServingTransport,
  type TransportContext,
} from './transport.js';
export type { Peer } from './transports/peers.js';
export { packetLength } from './wire/prelude.js';

export type { FlowControlOptions } from './calls/flow-control.js';
export type { Balance, BalanceContext, Candidate, ChooseNode } from './membership/balancer.js';
export type { ClusterNode } from './membership/member.js';
export type { ServingStatus } from './membership/node-info.js';
export type {
  ClusterOptions,
  CustomTransport,
  DistributionLimits,
  DistributionOptions,
  DistributionTransport,
  GrpcDistribution,
  NatsDistribution,
  RedisDistribution,
  RemoteServingOptions,
  TcpDistribution,
} from './options.js';
export { ServingCluster } from './serving-cluster.js';
export { ServingClusterModule, type ServingClusterModuleExtras } from './serving-cluster.module.js';
export {
  type Address,
  type JsonHandler,
  NodeGoneError,
  type Receiver,
  type ServingTransport,
  type TransportContext,
} from './transport.js';
export type { GrpcTransportOptions } from './transports/grpc/grpc.transport.js';
export type { NatsTransportOptions } from './transports/nats/nats.transport.js';
export type { Peer, Peers } from './transports/peers.js';
export type { RedisTransportOptions } from './transports/redis/redis.transport.js';
export type { TcpTransportOptions } from './transports/tcp/tcp.transport.js';
export type { WireLimits } from './wire/limits.js';
export { packetLength } from './wire/prelude.js';

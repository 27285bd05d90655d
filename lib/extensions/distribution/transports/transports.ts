import { Transport } from '@nestjs/microservices';
import type { ServingTransport, TransportKind } from '../transport.js';
import { grpc, type GrpcDistribution } from './grpc/grpc.js';
import { nats, type NatsDistribution } from './nats/nats.js';
import { redis, type RedisDistribution } from './redis/redis.js';
import { tcp, type TcpDistribution } from './tcp/tcp.js';

/** The transport between the nodes. */
export type DistributionTransport =
  TcpDistribution | GrpcDistribution | NatsDistribution | RedisDistribution | CustomTransport;

/** A custom transport. */
export interface CustomTransport {
  /** The transport. */
  readonly transport: ServingTransport;
}

export const transports: ReadonlyMap<unknown, TransportKind<never>> = new Map<
  unknown,
  TransportKind<never>
>([
  [Transport.TCP, tcp],
  [Transport.GRPC, grpc],
  [Transport.NATS, nats],
  [Transport.REDIS, redis],
]);

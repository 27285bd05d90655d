// Applications without nodes need not install this package. Where it is missing, these types are
// `any`, instead of an error for everyone who type-checks libraries. (Other forms of comments are
// not kept in the declarations.)
/** @ts-ignore */
import type {
  GrpcOptions,
  NatsOptions,
  RedisOptions,
  TcpOptions,
  Transport,
} from '@nestjs/microservices';

export type { GrpcOptions, NatsOptions, RedisOptions, TcpOptions, Transport };

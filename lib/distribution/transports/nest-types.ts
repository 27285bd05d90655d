// Applications that are no nodes need not have this package. Where it is missing these types are
// `any`, instead of errors for all who check the types of their libraries. (A comment of another
// form would not get into the declarations.)
/** @ts-ignore */
import type {
  GrpcOptions,
  NatsOptions,
  RedisOptions,
  TcpOptions,
  Transport,
} from '@nestjs/microservices';

export type { GrpcOptions, NatsOptions, RedisOptions, TcpOptions, Transport };

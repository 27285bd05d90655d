// Applications without nodes needn't install this package. Without it, these types are `any`
// instead of an error for everyone who type-checks libraries. (Declarations keep only this form of
// the directive.)
/** @ts-ignore */
import type {
  GrpcOptions,
  NatsOptions,
  RedisOptions,
  TcpOptions,
  Transport,
} from '@nestjs/microservices';

export type { GrpcOptions, NatsOptions, RedisOptions, TcpOptions, Transport };

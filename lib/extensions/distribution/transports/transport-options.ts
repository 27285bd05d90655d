// Without this package, these types are `any`, not an error for everyone who type-checks libraries.
// (Declarations keep only this form of the directive.)
/** @ts-ignore */
import type {
  GrpcOptions,
  NatsOptions,
  RedisOptions,
  TcpOptions,
  Transport,
} from '@nestjs/microservices';
import type { TlsSettings } from './peers.js';

export type { Transport };

/** Nest's gRPC options, apart from the service. */
export type GrpcTransportOptions = Pick<
  GrpcOptions['options'],
  'url' | 'keepalive' | 'channelOptions'
> &
  TlsSettings;

/** Nest's NATS options without serializers and `queue`, which follows from the serving's name. */
export type NatsTransportOptions = Omit<
  NonNullable<NatsOptions['options']>,
  'queue' | 'serializer' | 'deserializer'
>;

/**
 * Nest's Redis options without `wildcards`, serializers, and the options that could send packets
 * twice.
 */
export type RedisTransportOptions = Omit<
  NonNullable<RedisOptions['options']>,
  | 'wildcards'
  | 'serializer'
  | 'deserializer'
  | 'maxRetriesPerRequest'
  | 'autoResendUnfulfilledCommands'
>;

export type TcpTransportOptions = Omit<
  NonNullable<TcpOptions['options']>,
  'socketClass' | 'serializer' | 'deserializer' | 'tlsOptions'
> &
  TlsSettings & {
    /**
     * Absolute path of a Unix socket to listen on, instead of a host and port. Nodes on this
     * machine with write access to the file can connect. @default none
     */
    readonly path?: string;
  };

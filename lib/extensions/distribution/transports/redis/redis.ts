// Without this package, these types are `any`, not an error for everyone who type-checks libraries.
// (Declarations keep only this form of the directive.)
/** @ts-ignore */
import type { RedisOptions, Transport } from '@nestjs/microservices';
import type { TransportKind } from '../../transport.js';

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

/** Nodes connect to a Redis server. */
export interface RedisDistribution {
  /** The transport. */
  readonly transport: Transport.REDIS;
  /**
   * Options of Nest's Redis transport, passed on unchanged. By default nodes connect to
   * localhost:6379 and reconnect without limit.
   *
   * @default {}
   */
  readonly options?: RedisTransportOptions;
}

export const redis: TransportKind<RedisDistribution> = {
  name: 'Transport.REDIS',
  address: ['host', 'port'],
  isBrokerless: false,
  async open({ options }) {
    const { RedisTransport } = await import('./redis.transport.js');
    return new RedisTransport({ options });
  },
};

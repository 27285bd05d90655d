// Without this package, these types are `any`, not an error for everyone who type-checks libraries.
// (Declarations keep only this form of the directive.)
/** @ts-ignore */
import type { NatsOptions, Transport } from '@nestjs/microservices';
import type { TransportKind } from '../../transport.js';

/** Nest's NATS options without serializers and `queue`, which follows from the serving's name. */
export type NatsTransportOptions = Omit<
  NonNullable<NatsOptions['options']>,
  'queue' | 'serializer' | 'deserializer'
>;

/** Nodes connect to NATS servers. */
export interface NatsDistribution {
  /** The transport. */
  readonly transport: Transport.NATS;
  /**
   * Options of Nest's NATS transport, passed on unchanged. By default nodes connect to
   * nats://localhost:4222 and reconnect without limit.
   *
   * @default {}
   */
  readonly options?: NatsTransportOptions;
}

export const nats: TransportKind<NatsDistribution> = {
  name: 'Transport.NATS',
  address: ['servers', 'port'],
  isBrokerless: false,
  async open({ options }, { namespace }) {
    const { NatsTransport } = await import('./nats.transport.js');
    return new NatsTransport({ options, namespace });
  },
};

// Without this package, these types are `any`, not an error for everyone who type-checks libraries.
// (Declarations keep only this form of the directive.)
/** @ts-ignore */
import type { GrpcOptions, Transport } from '@nestjs/microservices';
import type { Peers, TlsSettings } from '../peers.js';
import type { TransportKind } from '../../transport.js';

/** Nest's gRPC options, apart from the service. */
export type GrpcTransportOptions = Pick<
  GrpcOptions['options'],
  'url' | 'keepalive' | 'channelOptions'
> &
  TlsSettings;

/** Nodes connect to each other over gRPC, without a broker. */
export interface GrpcDistribution {
  /** The transport. */
  readonly transport: Transport.GRPC;
  /**
   * Options of Nest's gRPC transport, limited to `url`, `tlsOptions`, `keepalive` and
   * `channelOptions`. By default a node listens on localhost:5000.
   *
   * @default {}
   */
  readonly options?: GrpcTransportOptions;
  /**
   * Other nodes: `host:port`, `{ host, port }`, `{ dns, port }` for every address of a DNS name, or
   * a function that returns them. This node's own address is ignored.
   *
   * @default []
   */
  readonly peers?: Peers;
  /**
   * Allows a node to listen beyond this machine without a `secret` or mutual TLS.
   *
   * @default false
   */
  readonly insecure?: boolean;
}

export const grpc: TransportKind<GrpcDistribution> = {
  name: 'Transport.GRPC',
  address: ['url'],
  isBrokerless: true,
  async open({ options, peers, insecure }, { secret }) {
    const { GrpcTransport } = await import('./grpc.transport.js');
    return new GrpcTransport({ options, peers, secret, insecure });
  },
};

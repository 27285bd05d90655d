// Without this package, these types are `any`, not an error for everyone who type-checks libraries.
// (Declarations keep only this form of the directive.)
/** @ts-ignore */
import type { TcpOptions, Transport } from '@nestjs/microservices';
import type { Peers, TlsSettings } from '../peers.js';
import type { TransportKind } from '../../transport.js';

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

/** Nodes connect to each other over TCP, without a broker. */
export interface TcpDistribution {
  /** The transport. */
  readonly transport: Transport.TCP;
  /**
   * Options of Nest's TCP transport, passed on unchanged, or the `path` of a Unix socket. By
   * default a node listens on 127.0.0.1, on any free port.
   *
   * @default {}
   */
  readonly options?: TcpTransportOptions;
  /**
   * Other nodes: `host:port`, `{ host, port }`, `{ dns, port }` for every address of a DNS name, a
   * Unix socket's path, `{ path }`, or a function that returns them. This node's own address is
   * ignored.
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

export const tcp: TransportKind<TcpDistribution> = {
  name: 'Transport.TCP',
  address: ['host', 'port', 'path'],
  isBrokerless: true,
  async open({ options, peers, insecure }, { secret }) {
    const { TcpTransport } = await import('./tcp.transport.js');
    return new TcpTransport({ options, peers, secret, insecure });
  },
};

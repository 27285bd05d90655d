import { type ConnectionOptions, type TlsOptions, createSecureContext } from 'node:tls';
import { ClientGrpcProxy } from '@nestjs/microservices';
import { ChannelCredentials } from '@grpc/grpc-js';
import type { ConnectAttempt } from '../reconnector.js';
import { type GrpcCall, GrpcConnection } from './grpc-connection.js';
import { type GrpcSide, service } from './grpc-server.js';
import type { PeerConnections, PeerConnection } from '../peer-connections.js';
import type { Handshake } from '../handshake.js';
import type { Endpoint } from '../peers.js';
import type { Address } from '../../transport.js';
import { SEND_BUFFER_LIMIT } from '../send-buffer.js';

/** Dials with Nest's gRPC client. */
export class GrpcDialler {
  private readonly options: ConstructorParameters<typeof ClientGrpcProxy>[0];

  constructor(
    { channelOptions, ...side }: GrpcSide,
    tlsOptions: (TlsOptions & ConnectionOptions) | undefined,
    private readonly opening: Handshake<GrpcConnection, GrpcLink>,
    private readonly links: PeerConnections<GrpcConnection, GrpcLink>,
  ) {
    this.options = {
      ...side,
      ...service,
      channelOptions: {
        // Attempts at different peers must not wait for each other's DNS results.
        'grpc.use_local_subchannel_pool': 1,
        ...(tlsOptions?.servername !== undefined && {
          'grpc.ssl_target_name_override': tlsOptions.servername,
        }),
        ...channelOptions,
      },
      ...(tlsOptions && { credentials: channelCredentials(tlsOptions) }),
    };
  }

  dial({ host, port }: Endpoint): ConnectAttempt & { readonly connection: GrpcConnection } {
    const client = new ClientGrpcProxy({
      ...this.options,
      url: host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`,
    });
    const connection = new GrpcConnection(
      client.getClientByServiceName<{ Link(): GrpcCall }>('Nodes').Link(),
    );
    void connection.closed.then(() => client.close());
    return {
      connection,
      opened: this.opening.dial(
        () => connection,
        (pattern, data) => connection.ask(pattern, data),
      ),
      get failure() {
        return connection.failure;
      },
      end: () => this.links.uses(connection) || connection.destroy(),
    };
  }
}

/** A connection of two nodes on a gRPC call. */
export class GrpcLink implements PeerConnection {
  readonly closed: Promise<void>;

  constructor(
    readonly address: Address,
    readonly connection: GrpcConnection,
    private readonly hear: (packet: Uint8Array) => void,
  ) {
    connection.on('packet', hear);
    this.closed = connection.closed;
  }

  send(packet: Uint8Array): void | Promise<void> {
    const room = this.connection.send(packet);
    const { unsent } = this.connection;
    if (unsent > SEND_BUFFER_LIMIT) {
      this.connection.destroy(
        `The node ${this.address} does not read: ${unsent} bytes wait for it`,
      );
    }
    return room;
  }

  destroy(): void {
    this.connection.off('packet', this.hear);
    this.connection.destroy();
  }
}

/** Options of Node's `tls`, as the credentials of a gRPC client. */
function channelCredentials(options: TlsOptions & ConnectionOptions): ChannelCredentials {
  const { checkServerIdentity, rejectUnauthorized } = options;
  return ChannelCredentials.createFromSecureContext(createSecureContext(options), {
    ...(checkServerIdentity && { checkServerIdentity }),
    ...(rejectUnauthorized !== undefined && { rejectUnauthorized }),
  });
}

import type { ConnectionOptions, TlsOptions } from 'node:tls';
import { ClientGrpcProxy } from '@nestjs/microservices';
import type { Dialling } from './dials.js';
import { type GrpcCall, GrpcConnection } from './grpc-connection.js';
import { channelCredentials } from './grpc-credentials.js';
import type { GrpcLink } from './grpc-link.js';
import { type GrpcSide, service } from './grpc-service.js';
import type { Links } from './links.js';
import type { Opening } from './opening.js';
import type { Endpoint } from './peers.js';

/** Dials with Nest's own gRPC client. */
export class GrpcDialler {
  private readonly options: ConstructorParameters<typeof ClientGrpcProxy>[0];

  constructor(
    { channelOptions, ...side }: GrpcSide,
    tlsOptions: (TlsOptions & ConnectionOptions) | undefined,
    private readonly opening: Opening<GrpcConnection, GrpcLink>,
    private readonly links: Links<GrpcConnection, GrpcLink>,
  ) {
    this.options = {
      ...side,
      ...service,
      channelOptions: {
        // An attempt at a peer does not wait for what another one has found.
        'grpc.use_local_subchannel_pool': 1,
        ...(tlsOptions?.servername !== undefined && { 'grpc.ssl_target_name_override': tlsOptions.servername }),
        ...channelOptions,
      },
      ...(tlsOptions && { credentials: channelCredentials(tlsOptions) }),
    };
  }

  dial({ host, port }: Endpoint): Dialling & { readonly connection: GrpcConnection } {
    const client = new ClientGrpcProxy({ ...this.options, url: host.includes(':') ? `[${host}]:${port}` : `${host}:${port}` });
    const connection = new GrpcConnection(client.getClientByServiceName<{ Link(): GrpcCall }>('Nodes').Link());
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

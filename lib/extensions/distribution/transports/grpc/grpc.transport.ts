import { Logger } from '@nestjs/common';
import type { Observable } from 'rxjs';
import { InvalidServingError } from '../../../../index.js';
import { messageOf, formatValue } from '../../../../internal.js';
import {
  type Address,
  NodeGoneError,
  type ServingTransport,
  type TransportContext,
} from '../../transport.js';
import {
  type TlsSettings,
  type PeerSettings,
  assertNotPublic,
  type Endpoint,
  endpointsOf,
  parseEndpoint,
  type Peer,
  type SocketEndpoint,
} from '../peers.js';
import { Reconnector } from '../reconnector.js';
import {
  type GrpcConnection,
  INVALID_ARGUMENT,
  GrpcDialler,
  GrpcLink,
  type GrpcSide,
  WINDOW,
} from './grpc-connection.js';
import { GrpcServer } from './grpc-server.js';
import { PeerConnections } from '../peer-connections.js';
import type { GrpcOptions } from '../nest-types.js';
import { Handshake } from '../handshake.js';
import { checkSize } from '../names.js';

/** Nest's gRPC options, apart from the service. */
export type GrpcTransportOptions = Pick<
  GrpcOptions['options'],
  'url' | 'keepalive' | 'channelOptions'
> &
  TlsSettings;

export interface GrpcTransportSettings extends PeerSettings {
  /** By default a node listens at localhost:5000, like Nest's servers. Port 0 is any free port. */
  readonly options?: GrpcTransportOptions | undefined;
}

/** @throws InvalidServingError for the path of a Unix socket */
function assertNetworkPeer(peer: Peer): asserts peer is Exclude<Peer, SocketEndpoint> {
  if (typeof peer === 'string' ? peer.startsWith('/') : 'path' in peer) {
    throw new InvalidServingError(
      `ServingClusterModule: the peer ${formatValue(peer)} is a Unix socket, which only ` +
        'Transport.TCP connects to',
    );
  }
}

/** Milliseconds that `stop` waits for peers to read. */
const FLUSH = 5_000;
/** Most bytes that a message adds to a packet. */
const AROUND = 4 * 1024;

/** Connects nodes over Nest's gRPC transport. Each connection is a bidirectional stream. */
export class GrpcTransport implements ServingTransport {
  readonly maxPacket = 2 ** 20;
  private readonly endpoints: Observable<readonly Endpoint[]>;
  private readonly connections = new Set<GrpcConnection>();
  private readonly side: GrpcSide;
  private links: PeerConnections<GrpcConnection, GrpcLink> | undefined;
  private readonly logger = new Logger('ServingTransport');
  private dials: Reconnector | undefined;
  private server: GrpcServer | undefined;

  /** @throws InvalidServingError for an invalid peer */
  constructor(private readonly settings: GrpcTransportSettings) {
    const { options: { keepalive, channelOptions } = {}, peers = [] } = settings;
    const most = this.maxPacket + AROUND;
    this.side = {
      ...(keepalive && { keepalive }),
      channelOptions: {
        // HTTP/2's default of 64 KiB per round trip would be 300 kB/s over 200 ms.
        [WINDOW]: 16 * 2 ** 20,
        ...channelOptions,
        'grpc.max_receive_message_length': most,
        'grpc.max_send_message_length': most,
      },
    };
    if (typeof peers !== 'function') {
      peers.forEach(assertNetworkPeer);
    }
    this.endpoints = endpointsOf(peers);
  }

  /** The port the node listens on. */
  get port(): number | undefined {
    return this.server?.port;
  }

  /**
   * @throws InvalidServingError if the node would be open to strangers; a system error if the port
   * can't be used
   */
  async start({ namespace, address, role, receiver }: TransportContext): Promise<void> {
    const { secret, options: { tlsOptions } = {} } = this.settings;
    const links = new PeerConnections<GrpcConnection, GrpcLink>(
      address,
      receiver,
      (...parts) => new GrpcLink(...parts),
    );
    const opening = new Handshake(address, namespace, secret, links);
    this.links = links;
    if (role === 'node') {
      await this.listen(opening);
    }
    const dialler = new GrpcDialler(this.side, tlsOptions, opening, links);
    this.dials = new Reconnector(
      this.endpoints,
      address,
      (endpoint) => {
        assertNetworkPeer(endpoint);
        const dialling = dialler.dial(endpoint);
        this.keep(dialling.connection);
        return dialling;
      },
      (of) => links.get(of)?.closed,
    );
  }

  /** Resolves when there's room for more, or at the connection's end. */
  send(to: Address, packet: Uint8Array): void | Promise<void> {
    checkSize(packet, this.maxPacket);
    const link = this.links?.get(to);
    if (!link) {
      throw new NodeGoneError(to);
    }
    return link.send(packet);
  }

  /** Doesn't wait: a slow node must not delay the others. */
  broadcast(packet: Uint8Array): void {
    checkSize(packet, this.maxPacket);
    for (const link of this.links?.all ?? []) {
      void link.send(packet);
    }
  }

  received(address: Address): number | undefined {
    return this.links?.get(address)?.received;
  }

  drop(address: Address): void {
    this.links?.get(address)?.destroy();
  }

  async stop(patience = FLUSH): Promise<void> {
    this.dials?.stop();
    this.links?.close();
    const timer = setTimeout(() => {
      this.connections.forEach((connection) => connection.destroy());
      this.server?.destroy();
    }, patience);
    await Promise.all([...this.connections].map((connection) => connection.end()));
    await this.server?.close();
    clearTimeout(timer);
  }

  private async listen(opening: Handshake<GrpcConnection, GrpcLink>): Promise<void> {
    const {
      secret,
      insecure = false,
      options: { url = 'localhost:5000', tlsOptions } = {},
    } = this.settings;
    const endpoint = parseEndpoint(url);
    if (!(endpoint.port < 65_536)) {
      throw new InvalidServingError(`A node listens at "host:port", not at ${formatValue(url)}`);
    }
    assertNotPublic(endpoint.host, { tlsOptions, secret, insecure });
    const server = new GrpcServer(
      this.side,
      tlsOptions,
      (connection) => {
        this.keep(connection);
        connection.on('text', (text: string) => answer(text, connection, opening));
      },
      (connection) => this.links?.uses(connection) === true,
    );
    await server.open(endpoint);
    this.server = server;
    this.logger.log(`Nodes reach this one at ${endpoint.host}:${server.port}`);
  }

  private keep(connection: GrpcConnection): void {
    this.connections.add(connection);
    void connection.closed.then(() => this.connections.delete(connection));
  }
}

function answer(
  text: string,
  connection: GrpcConnection,
  { answers }: Handshake<GrpcConnection, GrpcLink>,
): void {
  try {
    const { pattern, data }: { readonly pattern?: unknown; readonly data?: unknown } = Object(
      JSON.parse(text),
    );
    const known = typeof pattern === 'string' ? answers.get(pattern) : undefined;
    if (!known) {
      throw new Error(
        `Nobody answers ${formatValue(pattern)} here; is this node of another namespace?`,
      );
    }
    connection.sendText(known(data, connection));
  } catch (error) {
    connection.destroy(messageOf(error), INVALID_ARGUMENT);
  }
}

import { Logger } from '@nestjs/common';
import { type Observable, Subject } from 'rxjs';
import { InvalidServingError } from '../../../../index.js';
import { formatValue, messageOf } from '../../../../doors/text.js';
import {
  type Address,
  NodeGoneError,
  type ServingTransport,
  type TransportContext,
} from '../../transport.js';
import {
  assertNotPublic,
  type Endpoint,
  endpointName,
  endpointsOf,
  type NetworkEndpoint,
  parseEndpoint,
  type Peer,
  type PeerSettings,
  portOf,
  type SocketEndpoint,
} from '../peers.js';
import { Reconnector } from '../reconnector.js';
import {
  type GrpcCall,
  GrpcConnection,
  GrpcDialler,
  GrpcLink,
  type GrpcSide,
  INVALID_ARGUMENT,
  service,
  WINDOW,
} from './grpc-connection.js';
import { PeerConnections } from '../peer-connections.js';
import type { GrpcTransportOptions } from './grpc.js';
import { checkSize, closeUnlessLinked, Handshake } from '../handshake.js';
import { once } from 'node:events';
import type { Http2Session, ServerHttp2Stream } from 'node:http2';
import { createServer, type Server as Listener, type Socket } from 'node:net';
import { createServer as createTlsServer, type TlsOptions } from 'node:tls';
import { Server, ServerCredentials, ServerInterceptingCall } from '@grpc/grpc-js';
import { GrpcMethodStreamingType, ServerGrpc } from '@nestjs/microservices';

export interface GrpcTransportSettings extends PeerSettings {
  /** Listens at localhost:5000 by default. Port 0 is any free port. */
  readonly options?: GrpcTransportOptions | undefined;
}

/** @throws InvalidServingError for a Unix socket */
function assertNetworkPeer(peer: Peer): asserts peer is Exclude<Peer, SocketEndpoint> {
  if (typeof peer === 'string' ? peer.startsWith('/') : 'path' in peer) {
    throw new InvalidServingError(
      `ServingClusterModule: the peer ${formatValue(peer)} is a Unix socket, which only ` +
        'Transport.TCP connects to',
    );
  }
}

/** Milliseconds. */
const FLUSH = 5_000;
/** Most bytes around a packet. */
const AROUND = 4 * 1024;

/** Each connection is a bidirectional stream. */
export class GrpcTransport implements ServingTransport {
  readonly maxPacket = 2 ** 20;
  private readonly endpoints: Observable<readonly Endpoint[]>;
  private readonly sooner$ = new Subject<void>();
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
    this.endpoints = endpointsOf(peers, undefined, this.sooner$);
  }

  get port(): number | undefined {
    return this.server?.port;
  }

  /** @throws InvalidServingError if open to strangers; a system error if the port is unusable */
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

  send(to: Address, packet: Uint8Array): void | Promise<void> {
    checkSize(packet, this.maxPacket);
    const link = this.links?.get(to);
    if (!link) {
      throw new NodeGoneError(to);
    }
    return link.send(packet);
  }

  /** A slow node must not delay the others. */
  broadcast(packet: Uint8Array): void {
    checkSize(packet, this.maxPacket);
    for (const link of this.links?.all ?? []) {
      void link.send(packet);
    }
  }

  received(address: Address): number | undefined {
    return this.links?.get(address)?.received;
  }

  lookUp(): void {
    this.sooner$.next();
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
    this.logger.log(
      `Nodes reach this one at ${endpointName({ ...endpoint, port: server.port ?? 0 })}`,
    );
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

interface IncomingCall extends GrpcCall {
  getPeer(): string;
}

/**
 * Runs Nest's server on Node's sockets: gRPC neither reports the chosen port nor disconnects a
 * client that doesn't read.
 */
class GrpcServer extends ServerGrpc {
  private readonly listener: Listener;
  private readonly sockets = new Set<Socket>();
  private readonly calls = new WeakMap<Socket, GrpcConnection>();
  private readonly sessions = new Set<Http2Session>();

  /** @param isLink also true for former links */
  constructor(
    private readonly side: GrpcSide,
    private readonly tlsOptions: TlsOptions | undefined,
    accept: (connection: GrpcConnection) => void,
    isLink: (connection: GrpcConnection) => boolean,
  ) {
    super({ ...side, ...service });
    const options = { noDelay: true, keepAlive: true, keepAliveInitialDelay: 10_000 };
    this.listener = tlsOptions
      ? createTlsServer({ ...options, ...tlsOptions, ALPNProtocols: ['h2'] })
      : createServer(options);
    this.listener.on('connection', (socket: Socket) => {
      this.sockets.add(socket);
      socket.once('close', () => this.sockets.delete(socket));
      closeUnlessLinked(socket, () => {
        const connection = this.calls.get(socket);
        return connection !== undefined && isLink(connection);
      });
    });
    const pattern = this.createPattern('Nodes', 'Link', GrpcMethodStreamingType.PT_STREAMING);
    this.addHandler(pattern, async (call: IncomingCall) => {
      const socket = this.socketOf(call.getPeer());
      const connection = new GrpcConnection(call, socket);
      if (socket) {
        this.calls.set(socket, connection);
      }
      accept(connection);
    });
  }

  get port(): number | undefined {
    return portOf(this.listener);
  }

  async open(endpoint: NetworkEndpoint): Promise<void> {
    await new Promise<void>((resolve, reject) => {
      void this.listen((error) => (error ? reject(error) : resolve()));
    });
    await once(this.listener.listen(endpoint), 'listening');
    this.listener.on('error', (error) => this.handleError(error.message));
  }

  /** Ends a call's connection once its data is sent; `destroy` ends it earlier. */
  override async close(): Promise<void> {
    if (this.listener.listening) {
      const closed = once(this.listener, 'close');
      this.listener.close();
      await Promise.all(
        // A session closed by a peer no longer calls back, but emits `close`.
        [...this.sessions].map(async (session) => {
          session.close();
          await new Promise((sent) => session.once('close', sent));
        }),
      );
      this.destroy();
      await closed;
    }
    await super.close();
  }

  destroy(): void {
    this.sockets.forEach((socket) => socket.destroy());
  }

  override async createClient(): Promise<Server> {
    const server = new Server({
      ...this.side.channelOptions,
      ...this.getKeepaliveOptions(),
      // A node needs one call; a stranger could store a message in each.
      'grpc.max_concurrent_streams': 1,
      interceptors: [
        (_method, call) => {
          const { session } = (call as { stream?: ServerHttp2Stream }).stream ?? {};
          if (session) {
            widen(session, this.side.channelOptions[WINDOW]);
            this.sessions.add(session);
            session.once('close', () => this.sessions.delete(session));
          }
          return new ServerInterceptingCall(call);
        },
      ],
    });
    // The listener has already decrypted TLS.
    const injector = server.createConnectionInjector(ServerCredentials.createInsecure());
    this.listener.on(this.tlsOptions ? 'secureConnection' : 'connection', (socket: Socket) =>
      injector.injectConnection(socket),
    );
    return server;
  }

  private socketOf(peer: string): Socket | undefined {
    return [...this.sockets].find(
      ({ remoteAddress, remotePort }) => `${remoteAddress}:${remotePort}` === peer,
    );
  }
}

/**
 * Sets the receive windows in bytes. gRPC's server doesn't read the option yet
 * (grpc/grpc-node#3058), and hides the stream.
 */
function widen(session: Http2Session, window: number): void {
  session.settings({ initialWindowSize: window });
  session.setLocalWindowSize(window);
}

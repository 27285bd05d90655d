import { once } from 'node:events';
import type { Http2Session, ServerHttp2Stream } from 'node:http2';
import { createServer, type Server as Listener, type Socket } from 'node:net';
import { createServer as createTlsServer, type TlsOptions } from 'node:tls';
import { Server, ServerCredentials, ServerInterceptingCall } from '@grpc/grpc-js';
import { GrpcMethodStreamingType, ServerGrpc } from '@nestjs/microservices';
import { portOf, type NetworkEndpoint } from '../peers.js';
import {
  type GrpcCall,
  GrpcConnection,
  type GrpcSide,
  service,
  WINDOW,
} from './grpc-connection.js';
import { closeUnlessLinked } from '../handshake.js';

interface IncomingCall extends GrpcCall {
  /** Address and port. */
  getPeer(): string;
}

/**
 * Runs Nest's server on Node's sockets: gRPC itself would neither report the chosen port nor
 * disconnect a client that doesn't read.
 */
export class GrpcServer extends ServerGrpc {
  private readonly listener: Listener;
  private readonly sockets = new Set<Socket>();
  private readonly calls = new WeakMap<Socket, GrpcConnection>();
  private readonly sessions = new Set<Http2Session>();

  /** @param isLink true if a connection belongs, or belonged, to a node */
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

  /** Rejects with a system error if the port can't be used. */
  async open(endpoint: NetworkEndpoint): Promise<void> {
    await new Promise<void>((resolve, reject) => {
      void this.listen((error) => (error ? reject(error) : resolve()));
    });
    await once(this.listener.listen(endpoint), 'listening');
    this.listener.on('error', (error) => this.handleError(error.message));
  }

  /** Ends every connection, that of a call once its data is sent; until then `destroy` ends it. */
  override async close(): Promise<void> {
    if (this.listener.listening) {
      const closed = once(this.listener, 'close');
      this.listener.close();
      await Promise.all(
        // A session that a peer has begun to close calls back no more, and still has its event.
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

  /** Ends every connection immediately. */
  destroy(): void {
    this.sockets.forEach((socket) => socket.destroy());
  }

  override async createClient(): Promise<Server> {
    const server = new Server({
      ...this.side.channelOptions,
      ...this.getKeepaliveOptions(),
      // A node needs one call. A stranger could store a message in each call.
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
 * Sets the receive window of a connection and its streams, in bytes. gRPC's client reads it from the
 * same option; its server doesn't yet (grpc/grpc-node#3058), and has no public way to the stream.
 */
function widen(session: Http2Session, window: number): void {
  session.settings({ initialWindowSize: window });
  session.setLocalWindowSize(window);
}

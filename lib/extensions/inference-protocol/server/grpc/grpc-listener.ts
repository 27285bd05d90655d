import { EventEmitter, once } from 'node:events';
import type { ServerHttp2Session, ServerHttp2Stream } from 'node:http2';
import { type AddressInfo, createServer, type Server as Listener, type Socket } from 'node:net';
import { createServer as createTlsServer, type TlsOptions } from 'node:tls';
import { Logger } from '@nestjs/common';
import type { Server, ServerCredentials } from '@grpc/grpc-js';
import { InvalidServingError } from '../../../../index.js';
import type { GrpcDoorTls } from '../options.js';

/** Milliseconds to answer a ping. */
const ANSWER = 2000;

/** Milliseconds for a client to close an idle connection; then we destroy it. */
const CLOSE = 1000;

/** Milliseconds for a TLS handshake. */
const HANDSHAKE = 10_000;

export interface GrpcListenerOptions {
  readonly tls: GrpcDoorTls | undefined;
  /** Milliseconds without calls before a ping. */
  readonly idleTimeout: number;
}

/**
 * Runs a gRPC server on Node's sockets: the package ends idle connections just as a call may begin,
 * and waits without limit for clients that don't close theirs.
 */
export class GrpcListener {
  private readonly listener: Listener;
  private readonly sockets = new Set<Socket>();
  private readonly connections = new Set<Connection>();
  private readonly logger = new Logger('InferenceProtocol');

  /** @param insecure credentials: the listener decrypts TLS itself */
  constructor(server: Server, insecure: ServerCredentials, options: GrpcListenerOptions) {
    const { tls, idleTimeout } = options;
    const keepAlive = { noDelay: true, keepAlive: true, keepAliveInitialDelay: 10_000 };
    this.listener = tls
      ? createTlsServer({ ...keepAlive, ...tlsOptionsOf(tls) })
      : createServer(keepAlive);
    this.listener.on('connection', (socket: Socket) => {
      this.sockets.add(socket);
      socket.once('close', () => this.sockets.delete(socket));
    });
    const injector = server.createConnectionInjector(insecure);
    const http2Server = http2ServerOf(server);
    this.listener.on(tls ? 'secureConnection' : 'connection', (socket: Socket) => {
      // A client that disconnects is no application error.
      socket.on('error', () => {});
      http2Server.once('session', (session: ServerHttp2Session) => {
        const connection = new Connection(session, socket, idleTimeout);
        this.connections.add(connection);
        socket.once('close', () => this.connections.delete(connection));
      });
      injector.injectConnection(socket);
    });
  }

  async listen(host: string, port: number): Promise<number> {
    await once(this.listener.listen({ host, port }), 'listening');
    this.listener.on('error', (error) => this.logger.error(`No new connection: ${error.message}`));
    return (this.listener.address() as AddressInfo).port;
  }

  /** Ends connections after their calls, or after `timeout` milliseconds. */
  async close(timeout: number): Promise<void> {
    const closed = once(this.listener, 'close');
    this.listener.close();
    this.connections.forEach((connection) => connection.end());
    const timer = setTimeout(() => this.sockets.forEach((socket) => socket.destroy()), timeout);
    await closed;
    clearTimeout(timer);
  }
}

function tlsOptionsOf({ cert, key, ca }: GrpcDoorTls): TlsOptions {
  return {
    cert: Buffer.from(cert),
    key: Buffer.from(key),
    ...(ca !== undefined && { ca: Buffer.from(ca), requestCert: true }),
    ALPNProtocols: ['h2'],
    handshakeTimeout: HANDSHAKE,
  };
}

/**
 * The package keeps this server private.
 *
 * @throws InvalidServingError for a release without it
 */
function http2ServerOf(server: Server): EventEmitter {
  const servers: unknown = Reflect.get(server, 'http2Servers');
  const [http2Server]: unknown[] = servers instanceof Map ? [...servers.keys()] : [];
  if (!(http2Server instanceof EventEmitter)) {
    throw new InvalidServingError(
      'InferenceProtocolModule cannot serve gRPC with this release of @grpc/grpc-js, since it ' +
        'finds no HTTP/2 server in it; install the release that nestjs-serving is tested with',
    );
  }
  return http2Server;
}

class Connection {
  private calls = 0;
  private timer: NodeJS.Timeout | undefined;

  constructor(
    private readonly session: ServerHttp2Session,
    private readonly socket: Socket,
    private readonly idleTimeout: number,
  ) {
    session.on('stream', (stream: ServerHttp2Stream) => {
      this.calls++;
      clearTimeout(this.timer);
      stream.once('close', () => {
        this.calls--;
        this.rest();
      });
    });
    socket.once('close', () => clearTimeout(this.timer));
    this.rest();
  }

  /** Idle clients have some time to close the connection. */
  end(): void {
    this.session.close();
    this.rest();
  }

  private rest(): void {
    clearTimeout(this.timer);
    if (this.calls > 0 || this.socket.destroyed) {
      return;
    }
    this.timer = this.session.closed
      ? setTimeout(() => this.socket.destroy(), CLOSE).unref()
      : setTimeout(() => void this.probe(), this.idleTimeout).unref();
  }

  /** A client that answers may begin a call just then. */
  private async probe(): Promise<void> {
    const isThere = await answersPing(this.session);
    if (isThere || this.calls > 0) {
      this.rest();
    } else {
      this.end();
    }
  }
}

function answersPing(session: ServerHttp2Session): Promise<boolean> {
  return new Promise((resolve) => {
    // A busy process first reads what has arrived.
    const timer = setTimeout(() => setImmediate(resolve, false), ANSWER);
    session.ping((error) => {
      clearTimeout(timer);
      resolve(!error);
    });
  });
}

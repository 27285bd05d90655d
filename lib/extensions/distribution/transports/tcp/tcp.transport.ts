import { once } from 'node:events';
import { type ConnectOpts, type Server, Socket, type SocketConstructorOpts } from 'node:net';
import { setImmediate as turn } from 'node:timers/promises';
import { Logger, type Type } from '@nestjs/common';
import {
  ClientTCP,
  ServerTCP,
  type TcpClientOptions,
  type TcpContext,
  type TcpSocket,
} from '@nestjs/microservices';
import { firstValueFrom, type Observable, Subject } from 'rxjs';
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
  type PeerSettings,
  portOf,
} from '../peers.js';
import { type ConnectAttempt, Reconnector } from '../reconnector.js';
import {
  checkSize,
  closeUnlessLinked,
  Handshake,
  HANDSHAKE_BYTES,
  HANDSHAKE_TIMEOUT,
  SEND_BUFFER_LIMIT,
  servingPattern,
} from '../handshake.js';
import { type PeerConnection, PeerConnections } from '../peer-connections.js';
import type { TcpTransportOptions } from './tcp.js';
import { RateLimitedLogger } from '../../serving-cluster.js';
import { jsonAnswer } from '../../json/json-handlers.js';
import { checkSocketPath, removeStaleSocket } from '../socket-path.js';
import { type DirectReads, packetSocket } from './tcp-packets.js';

export interface TcpTransportSettings extends PeerSettings {
  /** Takes any free port of 127.0.0.1 by default. */
  readonly options?: TcpTransportOptions | undefined;
}

const LOCALHOST = '127.0.0.1';

/** Milliseconds. */
const FLUSH = 5_000;

/** Serves Nest's clients, too, unless there is a secret. */
export class TcpTransport implements ServingTransport {
  readonly maxPacket = 2 ** 20;
  private readonly options: TcpTransportOptions;
  private readonly endpoints: Observable<readonly Endpoint[]>;
  private readonly sooner$ = new Subject<void>();
  private readonly sockets = new Set<Socket>();
  /** Includes sockets in the TLS handshake. */
  private readonly rawSockets = new Set<Socket>();
  private readonly expected = new WeakSet<Socket>();
  private links: PeerConnections<Socket, TcpLink> | undefined;
  private readonly logger = new Logger('ServingTransport');
  private dials: Reconnector | undefined;
  private server: ServerTCP | undefined;

  /** @throws InvalidServingError for an invalid peer or path */
  constructor(private readonly settings: TcpTransportSettings) {
    this.options = settings.options ?? {};
    checkPath(this.options);
    this.endpoints = endpointsOf(settings.peers ?? [], undefined, this.sooner$);
  }

  get port(): number | undefined {
    return portOf(this.server?.unwrap<Server>());
  }

  /** @throws InvalidServingError if open to strangers; a system error if the port is unusable */
  async start({
    namespace,
    address,
    role,
    receiver,
    jsonHandlers,
  }: TransportContext): Promise<void> {
    const links = new PeerConnections<Socket, TcpLink>(
      address,
      receiver,
      (...parts) => new TcpLink(...parts),
    );
    const opening = new Handshake(address, namespace, this.settings.secret, links);
    this.links = links;
    if (role === 'node') {
      this.server = this.createServer(this.safeHost());
      for (const [pattern, answer] of opening.answers) {
        this.server.addHandler(pattern, (data: unknown, context: TcpContext) =>
          jsonAnswer(async () => {
            const socket: Socket = context.getSocketRef().netSocket;
            this.expectLink(socket);
            return answer(data, socket);
          })(data),
        );
      }
      for (const [name, handler] of jsonHandlers) {
        this.server.addHandler(servingPattern(namespace, name), jsonAnswer(handler));
      }
      await this.listen(this.server);
      const { path, host = LOCALHOST } = this.options;
      const place = path === undefined ? { host, port: this.port ?? 0 } : { path };
      this.logger.log(`Nodes reach this one at ${endpointName(place)}`);
    }
    this.dials = new Reconnector(
      this.endpoints,
      address,
      (endpoint) => dialByTcp(this.optionsFor(endpoint), opening, links),
      (of) => links.get(of)?.closed,
    );
  }

  send(to: Address, packet: Uint8Array, free?: (packet: Uint8Array) => void): void {
    checkSize(packet, this.maxPacket);
    const link = this.links?.get(to);
    if (!link) {
      throw new NodeGoneError(to);
    }
    link.send(packet, free);
  }

  broadcast(packet: Uint8Array): void {
    checkSize(packet, this.maxPacket);
    for (const link of this.links?.all ?? []) {
      link.send(packet);
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
    const links = this.links?.close() ?? [];
    // Finished handlers answer now.
    await turn();
    await Promise.all(
      [...links.map(({ socket }) => socket), ...this.sockets].map((socket) =>
        endOf(socket, patience),
      ),
    );
    const server = this.server?.unwrap<Server>();
    if (server?.listening) {
      const closed = once(server, 'close');
      this.server?.close();
      this.rawSockets.forEach((socket) => socket.destroy());
      await closed;
    }
  }

  private safeHost(): string {
    const { host = LOCALHOST, tlsOptions } = this.options;
    const { secret, insecure = false } = this.settings;
    assertNotPublic(host, { tlsOptions, secret, insecure });
    return host;
  }

  private optionsFor(endpoint: Endpoint): DialOptions {
    const { maxPacket, options } = this;
    const path = 'path' in endpoint ? endpoint.path : undefined;
    const { tlsOptions, ...plain } = options;
    return {
      ...plain,
      // Unix sockets aren't encrypted.
      ...(path === undefined && { ...endpoint, ...(tlsOptions && { tlsOptions }) }),
      socketClass: packetSocket(maxPacket, HANDSHAKE_BYTES, options, path),
    };
  }

  /** A secret makes the handshake a connection's only text. */
  private createServer(host: string): PlainServer {
    const { port = 0, tlsOptions } = this.options;
    const mostText = this.settings.secret === undefined ? Infinity : HANDSHAKE_BYTES;
    return new PlainServer({
      ...this.options,
      socketClass: packetSocket(this.maxPacket, mostText, this.options),
      host,
      port,
      ...(tlsOptions && { tlsOptions: { handshakeTimeout: HANDSHAKE_TIMEOUT, ...tlsOptions } }),
    });
  }

  private async listen(server: ServerTCP): Promise<void> {
    const net = server.unwrap<Server>();
    net.on('connection', (socket: Socket) => keep(socket, this.rawSockets));
    net.on(this.options.tlsOptions ? 'secureConnection' : 'connection', (socket: Socket) => {
      keep(socket, this.sockets);
      if (this.settings.secret !== undefined) {
        this.expectLink(socket);
      }
    });
    // Node leaves the connection open after a timeout.
    net.on('tlsClientError', (_: Error, socket: Socket) => socket.destroy());
    const { path } = this.options;
    if (path !== undefined) {
      await removeStaleSocket(path);
    }
    // Nest's callback gets only two kinds of errors.
    const listening = once(net, 'listening');
    if (path === undefined) {
      server.listen(() => {});
    } else {
      net.listen(path);
    }
    await listening;
  }

  private expectLink(socket: Socket): void {
    if (!this.expected.has(socket)) {
      this.expected.add(socket);
      closeUnlessLinked(socket, () => this.links?.uses(socket) === true);
    }
  }
}

class PlainServer extends ServerTCP {
  private readonly warnings = new RateLimitedLogger(new Logger('ServingTransport'));

  override handleError(error: unknown): void {
    this.warnings.warn(`A connection to this node broke: ${messageOf(error)}`);
  }
}

/** @throws InvalidServingError for an invalid path, or network options with it */
function checkPath({ path, ...options }: TcpTransportOptions): void {
  if (path === undefined) {
    return;
  }
  checkSocketPath('ServingClusterModule, "path" in "options"', path);
  const others = (['host', 'port', 'tlsOptions'] as const).filter(
    (name) => options[name] !== undefined,
  );
  if (others.length > 0) {
    throw new InvalidServingError(
      `ServingClusterModule: ${others.map(formatValue).join(' and ')} in "options" means nothing ` +
        `to a node that listens at "path", ${path}`,
    );
  }
}

function keep(socket: Socket, sockets: Set<Socket>): void {
  sockets.add(socket);
  socket.once('close', () => sockets.delete(socket));
}

async function endOf(socket: Socket, patience: number): Promise<void> {
  if (socket.destroyed) {
    return;
  }
  const timer = setTimeout(() => socket.destroy(), patience);
  const closed = new Promise((resolve) => socket.once('close', resolve));
  socket.end();
  await closed;
  clearTimeout(timer);
}

type DialOptions = NonNullable<TcpClientOptions['options']> & {
  readonly socketClass: Type<TcpSocket & DirectReads>;
};

function dialByTcp(
  options: DialOptions,
  opening: Handshake<Socket, TcpLink>,
  links: PeerConnections<Socket, TcpLink>,
): ConnectAttempt {
  const client = new QuietClient(options);
  const opened = opening.dial(
    () => client.unwrap(),
    (pattern, data) => firstValueFrom(client.send<unknown>(pattern, data)),
  );
  return {
    opened,
    get failure() {
      return client.failure;
    },
    end: () => client.end((socket) => links.uses(socket)),
  };
}

const READ = 64 * 1024;

/** Logs no errors: the caller does. */
class QuietClient extends ClientTCP {
  /** Nest reports only the end. */
  failure: unknown;

  constructor(private readonly options: DialOptions) {
    super(options);
  }

  override handleError(error: unknown): void {
    this.failure ??= error;
  }

  /** Node allocates memory for each read without `onread`. */
  override createSocket(): TcpSocket {
    if (this.tlsOptions) {
      return super.createSocket();
    }
    const buffer = Buffer.allocUnsafeSlow(READ);
    const options: SocketConstructorOpts & ConnectOpts = {
      onread: {
        buffer: () => packets.room ?? buffer,
        callback: (bytes, memory) => {
          if (memory === buffer) {
            packets.lend(buffer.subarray(0, bytes));
          } else {
            packets.wrote(bytes);
          }
          return true;
        },
      },
    };
    const net = new Socket(options);
    const packets = new this.options.socketClass(net);
    return packets;
  }

  end(isUsed: (socket: Socket) => boolean): void {
    const socket: Socket | undefined = this.socket?.netSocket;
    if (!socket || !isUsed(socket)) {
      this.close();
      socket?.destroy();
    }
  }
}

export class TcpLink implements PeerConnection {
  readonly closed: Promise<void>;
  private isCorked = false;

  constructor(
    readonly address: Address,
    readonly socket: Socket,
    private readonly receive: (packet: Uint8Array) => void,
  ) {
    socket.setNoDelay(true);
    socket.setKeepAlive(true, 10_000);
    socket.on('packet', receive);
    this.closed = new Promise((resolve) => {
      if (socket.destroyed || socket.readableEnded) {
        resolve();
      }
      socket.once('end', resolve).once('close', resolve);
    });
  }

  get received(): number {
    return this.socket.bytesRead;
  }

  /** Sends a turn's packets together. */
  send(packet: Uint8Array, free?: (packet: Uint8Array) => void): void {
    if (!this.isCorked) {
      this.isCorked = true;
      this.socket.cork();
      process.nextTick(() => {
        this.isCorked = false;
        this.socket.uncork();
      });
    }
    this.socket.write(packet, free && (() => free(packet)));
    if (this.socket.writableLength > SEND_BUFFER_LIMIT) {
      this.socket.destroy(
        new Error(
          `The node ${this.address} does not read: ${this.socket.writableLength} bytes wait for it`,
        ),
      );
    }
  }

  destroy(): void {
    this.socket.off('packet', this.receive);
    this.socket.destroy();
  }
}

import { once } from 'node:events';
import type { Server, Socket } from 'node:net';
import { setImmediate as turn } from 'node:timers/promises';
import { Logger } from '@nestjs/common';
import { ServerTCP, type TcpContext } from '@nestjs/microservices';
import type { Observable } from 'rxjs';
import { InvalidServingError, messageOf } from '../../../errors.js';
import { formatValue } from '../../../format.js';
import {
  type Address,
  NodeGoneError,
  type ServingTransport,
  type TransportContext,
} from '../../transport.js';
import {
  type TlsSettings,
  type PeerSettings,
  portOf,
  assertNotPublic,
  type Endpoint,
  endpointsOf,
} from '../peers.js';
import { Reconnector } from '../reconnector.js';
import { closeUnlessLinked, HANDSHAKE_BYTES, HANDSHAKE_TIMEOUT, Handshake } from '../handshake.js';
import { PeerConnections } from '../peer-connections.js';
import { servingPattern, checkSize } from '../names.js';
import type { TcpOptions } from '../nest-types.js';
import { RateLimitedLogger } from '../../membership/membership-log.js';
import { jsonAnswer } from '../../json/json-handlers.js';
import { type DialOptions, dialByTcp, TcpLink } from './tcp-link.js';
import { checkSocketPath, removeStaleSocket } from '../socket-path.js';
import { packetSocket } from './tcp-packets.js';

export type TcpTransportOptions = Omit<
  NonNullable<TcpOptions['options']>,
  'socketClass' | 'serializer' | 'deserializer' | 'tlsOptions'
> &
  TlsSettings & {
    /**
     * An absolute path: the node listens on a Unix socket there, in place of a host and port. Nodes
     * on this machine that may write the file can connect. @default none
     */
    readonly path?: string;
  };

export interface TcpTransportSettings extends PeerSettings {
  /**
   * The options of Nest's TCP transport. By default a node listens on 127.0.0.1, on any free port;
   * nodes that dial it need a fixed one.
   */
  readonly options?: TcpTransportOptions | undefined;
}

const LOCALHOST = '127.0.0.1';

/** Milliseconds for peers to read what was sent, when a node stops. */
const FLUSH = 5_000;

/** Nodes connected by Nest's TCP transport. The same port serves Nest's clients, too. */
export class TcpTransport implements ServingTransport {
  readonly maxPacket = 2 ** 20;
  private readonly options: TcpTransportOptions;
  private readonly endpoints: Observable<readonly Endpoint[]>;
  private readonly sockets = new Set<Socket>();
  /** The sockets below TLS, including those in TLS handshake. */
  private readonly rawSockets = new Set<Socket>();
  /** Connections that belong to nodes, or must within a time limit. */
  private readonly expected = new WeakSet<Socket>();
  private links: PeerConnections<Socket, TcpLink> | undefined;
  private readonly logger = new Logger('ServingTransport');
  private dials: Reconnector | undefined;
  private server: ServerTCP | undefined;

  /** @throws InvalidServingError for an invalid peer or path */
  constructor(private readonly settings: TcpTransportSettings) {
    this.options = settings.options ?? {};
    checkPath(this.options);
    this.endpoints = endpointsOf(settings.peers ?? []);
  }

  /** The port on which the node listens, unless that is a Unix socket. */
  get port(): number | undefined {
    return portOf(this.server?.unwrap<Server>());
  }

  /**
   * @throws InvalidServingError when the node would be open to strangers; a system error when the
   * port cannot be used
   */
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
      this.logger.log(`Nodes reach this one at ${path ?? `${host}:${this.port}`}`);
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

  drop(address: Address): void {
    this.links?.get(address)?.destroy();
  }

  async stop(patience = FLUSH): Promise<void> {
    this.dials?.stop();
    const links = this.links?.close() ?? [];
    // Handlers that have their answers write them in this turn.
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

  /**
   * The host to listen on.
   *
   * @throws InvalidServingError when the node would be open to strangers
   */
  private safeHost(): string {
    const { host = LOCALHOST, tlsOptions } = this.options;
    const { secret, insecure = false } = this.settings;
    assertNotPublic(host, { tlsOptions, secret, insecure });
    return host;
  }

  /** The options of a client that connects to the endpoint. */
  private optionsFor(endpoint: Endpoint): DialOptions {
    const { maxPacket, options } = this;
    const path = 'path' in endpoint ? endpoint.path : undefined;
    const { tlsOptions, ...plain } = options;
    return {
      ...plain,
      // Only the network is encrypted.
      ...(path === undefined && { ...endpoint, ...(tlsOptions && { tlsOptions }) }),
      socketClass: packetSocket(maxPacket, HANDSHAKE_BYTES, options, path),
    };
  }

  /** With a secret, only nodes may connect, and all their text is that of the handshake. */
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
    // Node reports a TLS handshake that takes too long, and leaves the connection open.
    net.on('tlsClientError', (_: Error, socket: Socket) => socket.destroy());
    // Nest passes only two errors to its callback.
    const { path } = this.options;
    if (path !== undefined) {
      await removeStaleSocket(path);
    }
    const listening = once(net, 'listening');
    if (path === undefined) {
      server.listen(() => {});
    } else {
      net.listen(path);
    }
    await listening;
  }

  /** Expects the connection to become that of a node, within a time limit. */
  private expectLink(socket: Socket): void {
    if (!this.expected.has(socket)) {
      this.expected.add(socket);
      closeUnlessLinked(socket, () => this.links?.uses(socket) === true);
    }
  }
}

/** Nest's server, which logs a broken connection in one line instead of an exception's stack. */
class PlainServer extends ServerTCP {
  private readonly warnings = new RateLimitedLogger(new Logger('ServingTransport'));

  override handleError(error: unknown): void {
    this.warnings.warn(`A connection to this node broke: ${messageOf(error)}`);
  }
}

/** @throws InvalidServingError for an invalid path, or one beside options of the network */
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

/** Kept until it closes. */
function keep(socket: Socket, sockets: Set<Socket>): void {
  sockets.add(socket);
  socket.once('close', () => sockets.delete(socket));
}

/** Sends what waits and closes; does not wait for a peer that does not read. */
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

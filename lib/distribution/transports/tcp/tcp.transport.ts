import { once } from 'node:events';
import type { Server, Socket } from 'node:net';
import { setImmediate as turn } from 'node:timers/promises';
import { Logger } from '@nestjs/common';
import { ServerTCP, type TcpContext } from '@nestjs/microservices';
import type { Observable } from 'rxjs';
import {
  type Address,
  NodeGoneError,
  type ServingTransport,
  type TransportContext,
} from '../../transport.js';
import { type TlsSettings, type PeerSettings, portOf, assertNotPublic } from '../peer-options.js';
import { Reconnector } from '../reconnector.js';
import { closeUnlessLinked, HANDSHAKE_BYTES, HANDSHAKE_TIMEOUT } from '../handshake-limits.js';
import { PeerConnections } from '../peer-connections.js';
import { servingPattern, checkSize } from '../names.js';
import { Handshake } from '../handshake.js';
import type { TcpOptions } from '../nest-types.js';
import { type Endpoint, endpointsOf } from '../peers.js';
import { jsonAnswer } from '../../json/json-answer.js';
import { dialByTcp, TcpLink } from './tcp-link.js';
import { packetSocket } from './tcp-packet-socket.js';

export type TcpTransportOptions = Omit<
  NonNullable<TcpOptions['options']>,
  'socketClass' | 'serializer' | 'deserializer' | 'tlsOptions'
> &
  TlsSettings;

export interface TcpTransportSettings extends PeerSettings {
  /**
   * Those of Nest's own TCP transport. By default a node listens on 127.0.0.1, on any free port;
   * nodes that dial it must know which.
   */
  readonly options?: TcpTransportOptions | undefined;
}

/** How long those who have something to read are waited for when a node stops, in milliseconds. */
const FLUSH = 5_000;

/**
 * Nodes that are connected to each other by Nest's own TCP transport, of which the same port serves
 * Nest's own clients too.
 */
export class TcpTransport implements ServingTransport {
  readonly maxPacket = 2 ** 20;
  private readonly options: TcpTransportOptions;
  private readonly endpoints: Observable<readonly Endpoint[]>;
  private readonly sockets = new Set<Socket>();
  /** Those below the others where these are encrypted, and those that are about to be. */
  private readonly rawSockets = new Set<Socket>();
  /** Connections that are, or must become, links. */
  private readonly expected = new WeakSet<Socket>();
  private links: PeerConnections<Socket, TcpLink> | undefined;
  private readonly logger = new Logger('ServingTransport');
  private dials: Reconnector | undefined;
  private server: ServerTCP | undefined;

  /** @throws InvalidServingError when one of the peers is none */
  constructor(private readonly settings: TcpTransportSettings) {
    this.options = settings.options ?? {};
    this.endpoints = endpointsOf(settings.peers ?? []);
  }

  /** Where a node listens, once it does. */
  get port(): number | undefined {
    return portOf(this.server?.unwrap<Server>());
  }

  /**
   * @throws InvalidServingError when the node would be open to strangers; an error of the system
   * when it cannot listen there
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
      const host = this.options.host ?? '127.0.0.1';
      assertNotPublic(host, {
        tlsOptions: this.options.tlsOptions,
        secret: this.settings.secret,
        insecure: this.settings.insecure ?? false,
      });
      this.server = this.createServer(host);
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
      this.logger.log(`Nodes reach this one at ${host}:${this.port}`);
    }
    const options = {
      ...this.options,
      socketClass: packetSocket(this.maxPacket, HANDSHAKE_BYTES, this.options),
    };
    this.dials = new Reconnector(
      this.endpoints,
      address,
      (endpoint) => dialByTcp(endpoint, options, opening, links),
      (of) => links.get(of)?.closed,
    );
  }

  send(to: Address, packet: Uint8Array): void {
    checkSize(packet, this.maxPacket);
    const link = this.links?.get(to);
    if (!link) {
      throw new NodeGoneError(to);
    }
    link.send(packet);
  }

  broadcast(packet: Uint8Array): void {
    checkSize(packet, this.maxPacket);
    for (const link of this.links?.all ?? []) {
      link.send(packet);
    }
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

  /** With a secret only nodes may connect, and all their text is that of the handshake. */
  private createServer(host: string): ServerTCP {
    const { port = 0, tlsOptions } = this.options;
    const mostText = this.settings.secret === undefined ? Infinity : HANDSHAKE_BYTES;
    return new ServerTCP({
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
    // Node reports a handshake of TLS that takes too long, and leaves the connection open.
    net.on('tlsClientError', (_: Error, socket: Socket) => socket.destroy());
    // Nest tells its callback of two errors alone.
    const listening = once(net, 'listening');
    server.listen(() => {});
    await listening;
  }

  /** The connection is that of a node, or of one who tries to pass for a node. */
  private expectLink(socket: Socket): void {
    if (!this.expected.has(socket)) {
      this.expected.add(socket);
      closeUnlessLinked(socket, () => this.links?.uses(socket) === true);
    }
  }
}

/** Until it closes. */
function keep(socket: Socket, sockets: Set<Socket>): void {
  sockets.add(socket);
  socket.once('close', () => sockets.delete(socket));
}

/** Sends what waits and closes; who does not read is not waited for. */
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

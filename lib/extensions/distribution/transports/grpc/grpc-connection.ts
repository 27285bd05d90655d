import { EventEmitter, once } from 'node:events';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { type ConnectionOptions, type TlsOptions, createSecureContext } from 'node:tls';
import { ClientGrpcProxy, type GrpcOptions } from '@nestjs/microservices';
import { ChannelCredentials, type ChannelOptions } from '@grpc/grpc-js';
import { type Handshake, HANDSHAKE_BYTES, SEND_BUFFER_LIMIT } from '../handshake.js';
import type { ConnectAttempt } from '../reconnector.js';
import type { PeerConnections, PeerConnection } from '../peer-connections.js';
import type { NetworkEndpoint } from '../peers.js';
import { statusText } from '../../../../doors/text.js';
import type { Address } from '../../transport.js';
import { fileURLToPath } from 'node:url';

/** Exactly one is set. */
export interface GrpcMessage {
  readonly frame?: Uint8Array;
  readonly text?: string;
}

export interface GrpcCall extends Duplex {
  cancel?(): void;
}

/** Codes of an intended end and of a violation: https://grpc.io/docs/guides/status-codes/ */
export const CANCELLED = 1;
export const INVALID_ARGUMENT = 3;

/** Packets before a turn of the event loop. */
const PAUSE_AFTER = 64;

/** Emits `packet` and `text`; a packet without a listener ends the connection. */
export class GrpcConnection extends EventEmitter {
  readonly closed: Promise<void>;
  failure: unknown;
  /** Received bytes. */
  packets = 0;
  private sincePause = 0;
  /** Unsent bytes. */
  unsent = 0;
  /** Received characters of text. */
  private text = 0;
  private room: Promise<void> | undefined;

  /** @param socket only on the server side */
  constructor(
    private readonly call: GrpcCall,
    private readonly socket?: Socket,
  ) {
    super();
    call.on('data', (message: GrpcMessage) => this.take(message));
    call.on('error', (error) => (this.failure ??= error));
    call.once('end', () => call.end());
    this.closed = new Promise((resolve) => {
      ['end', 'error', 'cancelled', 'close'].forEach((event) => call.once(event, () => resolve()));
    });
  }

  /** Grows with each packet, or part of one on the server. */
  get received(): number {
    return this.packets + (this.socket?.bytesRead ?? 0);
  }

  async ask(pattern: string, data: object): Promise<unknown> {
    const answer = once(this, 'text');
    this.sendText({ pattern, data });
    const end = this.closed.then(() =>
      Promise.reject(this.failure ?? new Error('Connection closed')),
    );
    const [text]: string[] = await Promise.race([answer, end]);
    return JSON.parse(text ?? '');
  }

  sendText(value: unknown): void {
    if (this.call.writable) {
      this.call.write({ text: JSON.stringify(value) });
    }
  }

  send(packet: Uint8Array): void | Promise<void> {
    if (!this.call.writable) {
      return;
    }
    this.unsent += packet.byteLength;
    const hasRoom = this.call.write({ frame: packet }, () => (this.unsent -= packet.byteLength));
    if (!hasRoom) {
      return (this.room ??= this.drained());
    }
  }

  async end(): Promise<void> {
    this.call.end();
    await this.closed;
  }

  destroy(message = 'The connection is not needed', code = CANCELLED): void {
    if (this.call.cancel) {
      this.call.cancel();
    } else if (!this.call.destroyed) {
      const details = statusText(message);
      this.call.emit('error', Object.assign(new Error(details), { code, details }));
    }
    if (this.unsent > 0) {
      // The status would wait behind unread data.
      this.socket?.destroy();
    }
  }

  private async drained(): Promise<void> {
    const drain = new Promise((resolve) => this.call.once('drain', resolve));
    await Promise.race([drain, this.closed]);
    this.room = undefined;
  }

  private take({ frame, text }: GrpcMessage): void {
    if (text !== undefined) {
      this.text += text.length;
      if (this.text > HANDSHAKE_BYTES) {
        this.refuse(`More than ${HANDSHAKE_BYTES} characters of text on a connection of nodes`);
      } else {
        this.emit('text', text);
      }
      return;
    }
    this.packets += frame?.byteLength ?? 0;
    if (++this.sincePause === PAUSE_AFTER) {
      // Leaves time for timers and for sending.
      this.call.pause();
      setImmediate(() => {
        this.sincePause = 0;
        this.call.resume();
      });
    }
    if (frame && !this.emit('packet', frame)) {
      this.refuse('A packet on a connection that is no link');
    }
  }

  private refuse(message: string): void {
    this.failure ??= new Error(message);
    this.destroy(message, INVALID_ARGUMENT);
  }
}

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
        // Peers must not wait for each other's DNS results.
        'grpc.use_local_subchannel_pool': 1,
        ...(tlsOptions?.servername !== undefined && {
          'grpc.ssl_target_name_override': tlsOptions.servername,
        }),
        ...channelOptions,
      },
      ...(tlsOptions && { credentials: channelCredentials(tlsOptions) }),
    };
  }

  dial({ host, port }: NetworkEndpoint): ConnectAttempt & { readonly connection: GrpcConnection } {
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

export class GrpcLink implements PeerConnection {
  readonly closed: Promise<void>;

  constructor(
    readonly address: Address,
    readonly connection: GrpcConnection,
    private readonly receive: (packet: Uint8Array) => void,
  ) {
    connection.on('packet', receive);
    this.closed = connection.closed;
  }

  get received(): number {
    return this.connection.received;
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
    this.connection.off('packet', this.receive);
    this.connection.destroy();
  }
}

function channelCredentials(options: TlsOptions & ConnectionOptions): ChannelCredentials {
  const { checkServerIdentity, rejectUnauthorized } = options;
  return ChannelCredentials.createFromSecureContext(createSecureContext(options), {
    ...(checkServerIdentity && { checkServerIdentity }),
    ...(rejectUnauthorized !== undefined && { rejectUnauthorized }),
  });
}

export const service = {
  package: 'nestjs_serving',
  protoPath: fileURLToPath(new URL('./link.proto', import.meta.url)),
  loader: {},
} satisfies Partial<GrpcOptions['options']>;

/** Channel option: bytes that a connection receives unread. */
export const WINDOW = 'grpc-node.flow_control_window';

export interface GrpcSide {
  readonly channelOptions: ChannelOptions & { readonly [WINDOW]: number };
  readonly keepalive?: GrpcOptions['options']['keepalive'];
}

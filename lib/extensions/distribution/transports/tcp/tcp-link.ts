import { type ConnectOpts, Socket, type SocketConstructorOpts } from 'node:net';
import type { Type } from '@nestjs/common';
import { ClientTCP, type TcpClientOptions, type TcpSocket } from '@nestjs/microservices';
import { firstValueFrom } from 'rxjs';
import type { ConnectAttempt } from '../reconnector.js';
import type { PeerConnections, PeerConnection } from '../peer-connections.js';
import type { Handshake } from '../handshake.js';
import type { Address } from '../../transport.js';
import { SEND_BUFFER_LIMIT } from '../send-buffer.js';
import type { DirectReads } from './tcp-packets.js';

/** Nest's client options, with a socket that accepts packets. */
export type DialOptions = NonNullable<TcpClientOptions['options']> & {
  readonly socketClass: Type<TcpSocket & DirectReads>;
};

/** Dials with Nest's TCP client. */
export function dialByTcp(
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

/** Bytes of the shared read buffer. */
const READ = 64 * 1024;

/** Logs no errors: the caller does. */
class QuietClient extends ClientTCP {
  /** The error that ended the connection; Nest reports only the end. */
  failure: unknown;

  constructor(private readonly options: DialOptions) {
    super(options);
  }

  override handleError(error: unknown): void {
    this.failure ??= error;
  }

  /** Without `onread`, Node allocates memory for each read. */
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

/** A connection between two nodes over a socket. */
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

  /** Sends one turn's packets together. */
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

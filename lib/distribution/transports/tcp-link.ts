import type { Socket } from 'node:net';
import type { Address } from '../transport.js';
import type { Link } from './links.js';
import { MOST_UNREAD } from './unread.js';

/** A link on a socket. */
export class TcpLink implements Link {
  readonly closed: Promise<void>;
  private isCorked = false;

  constructor(
    readonly address: Address,
    readonly socket: Socket,
    private readonly hear: (packet: Uint8Array) => void,
  ) {
    socket.setNoDelay(true);
    socket.setKeepAlive(true, 10_000);
    socket.on('packet', hear);
    this.closed = new Promise((resolve) => {
      if (socket.destroyed || socket.readableEnded) {
        resolve();
      }
      socket.once('end', resolve).once('close', resolve);
    });
  }

  /** Packets of one turn leave together. */
  send(packet: Uint8Array): void {
    if (!this.isCorked) {
      this.isCorked = true;
      this.socket.cork();
      process.nextTick(() => {
        this.isCorked = false;
        this.socket.uncork();
      });
    }
    this.socket.write(packet);
    if (this.socket.writableLength > MOST_UNREAD) {
      this.socket.destroy(new Error(`The node ${this.address} does not read: ${this.socket.writableLength} bytes wait for it`));
    }
  }

  destroy(): void {
    this.socket.off('packet', this.hear);
    this.socket.destroy();
  }
}

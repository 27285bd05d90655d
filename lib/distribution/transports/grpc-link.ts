import type { Address } from '../transport.js';
import type { GrpcConnection } from './grpc-connection.js';
import type { Link } from './links.js';
import { MOST_UNREAD } from './unread.js';

/** A link on a call. */
export class GrpcLink implements Link {
  readonly closed: Promise<void>;

  constructor(
    readonly address: Address,
    readonly connection: GrpcConnection,
    private readonly hear: (packet: Uint8Array) => void,
  ) {
    connection.on('packet', hear);
    this.closed = connection.closed;
  }

  send(packet: Uint8Array): void | Promise<void> {
    const room = this.connection.send(packet);
    const { unsent } = this.connection;
    if (unsent > MOST_UNREAD) {
      this.connection.destroy(`The node ${this.address} does not read: ${unsent} bytes wait for it`);
    }
    return room;
  }

  destroy(): void {
    this.connection.off('packet', this.hear);
    this.connection.destroy();
  }
}

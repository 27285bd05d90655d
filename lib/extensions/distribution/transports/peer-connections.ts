import type { EventEmitter } from 'node:events';
import type { Address, Receiver } from '../transport.js';

const MOST_EARLY = 4 * 2 ** 20;

export interface PeerConnection {
  readonly address: Address;
  readonly closed: Promise<void>;
  readonly received: number;
  send(packet: Uint8Array): void | Promise<void>;
  destroy(): void;
}

/**
 * One connection per node keeps packets in order, even if both dial.
 *
 * The node with the lesser address chooses the connection: the first one, until it closes. A
 * connection emits packets as `packet`.
 */
export class PeerConnections<Connection extends EventEmitter, L extends PeerConnection> {
  private readonly links = new Map<Address, L>();
  private readonly proposed = new Set<Address>();
  private readonly used = new WeakSet<Connection>();
  private isClosing = false;

  constructor(
    private readonly own: Address,
    private readonly receiver: Receiver,
    private readonly make: (
      address: Address,
      connection: Connection,
      receive: (packet: Uint8Array) => void,
    ) => L,
  ) {}

  get all(): Iterable<L> {
    return this.links.values();
  }

  get(address: Address): L | undefined {
    return this.links.get(address);
  }

  uses(connection: Connection): boolean {
    return this.used.has(connection);
  }

  accept(address: Address, connection: Connection): boolean {
    if (this.isClosing || (this.own < address && this.isTaken(address))) {
      return false;
    }
    this.open(address, connection);
    return true;
  }

  /**
   * Uses the connection if it's the first and accepted.
   *
   * @param ask proposes the connection
   */
  async propose(
    address: Address,
    connection: Connection,
    ask: () => Promise<boolean>,
  ): Promise<L | undefined> {
    if (this.isTaken(address)) {
      return undefined;
    }
    // The other node may send before we handle the answer.
    const early: Uint8Array[] = [];
    let bytes = 0;
    const keep = (packet: Uint8Array): void => {
      bytes += packet.byteLength;
      if (bytes <= MOST_EARLY) {
        early.push(packet);
      }
    };
    this.proposed.add(address);
    connection.on('packet', keep);
    try {
      if (!(await ask()) || this.isClosing) {
        return undefined;
      }
      if (bytes > MOST_EARLY) {
        throw new Error(
          `It has sent ${bytes} bytes before it answered; at most ${MOST_EARLY} are allowed`,
        );
      }
    } finally {
      this.proposed.delete(address);
      connection.off('packet', keep);
    }
    const link = this.open(address, connection);
    early.forEach((packet) => this.receiver.receive(packet, address));
    return link;
  }

  close(): readonly L[] {
    const open = [...this.links.values()];
    this.isClosing = true;
    this.links.clear();
    return open;
  }

  private isTaken(address: Address): boolean {
    return this.links.has(address) || this.proposed.has(address);
  }

  private open(address: Address, connection: Connection): L {
    const old = this.links.get(address);
    if (old) {
      old.destroy();
      this.remove(old);
    }
    const link = this.make(address, connection, (packet) => this.receiver.receive(packet, address));
    this.links.set(address, link);
    this.used.add(connection);
    void link.closed.then(() => this.remove(link));
    this.receiver.nodeConnected(address);
    return link;
  }

  private remove(link: L): void {
    if (this.links.get(link.address) === link) {
      this.links.delete(link.address);
      this.receiver.nodeDisconnected(link.address);
    }
  }
}

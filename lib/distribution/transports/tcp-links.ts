import type { Socket } from 'node:net';
import type { Address, Receiver } from '../transport.js';
import { TcpLink } from './tcp-link.js';

/**
 * The links of a node: one to each other node, so that packets keep their order, even when two nodes dial each other.
 *
 * Of two nodes the one with the lesser address chooses which connection is their link: the first one, until it closes. The other takes what it is given.
 */
export class TcpLinks {
  private readonly links = new Map<Address, TcpLink>();
  private readonly proposed = new Set<Address>();
  private isClosing = false;

  constructor(
    private readonly own: Address,
    private readonly receiver: Receiver,
  ) {}

  get all(): Iterable<TcpLink> {
    return this.links.values();
  }

  get(address: Address): TcpLink | undefined {
    return this.links.get(address);
  }

  /** Takes a connection that the other node proposes as their link, or says that it is not wanted. */
  accept(address: Address, socket: Socket): boolean {
    if (this.isClosing || (this.own < address && this.isTaken(address))) {
      return false;
    }
    this.open(address, socket);
    return true;
  }

  /**
   * Proposes a connection as the link to the other node: the link, if there is none yet and the other node accepts it.
   *
   * @param ask asks the other node
   */
  async propose(address: Address, socket: Socket, ask: () => Promise<boolean>): Promise<TcpLink | undefined> {
    if (this.isTaken(address)) {
      return undefined;
    }
    // Who has accepted sends at once, and packets come before its answer is known here.
    const early: Uint8Array[] = [];
    const keep = (packet: Uint8Array): unknown => early.push(packet);
    this.proposed.add(address);
    socket.on('packet', keep);
    try {
      if (!(await ask()) || this.isClosing) {
        return undefined;
      }
    } finally {
      this.proposed.delete(address);
      socket.off('packet', keep);
    }
    const link = this.open(address, socket);
    early.forEach((packet) => this.receiver.hear(packet));
    return link;
  }

  /** Opens no more links, and tells nothing more. The links that were open are the caller's. */
  close(): readonly TcpLink[] {
    const open = [...this.links.values()];
    this.isClosing = true;
    this.links.clear();
    return open;
  }

  private isTaken(address: Address): boolean {
    return this.links.has(address) || this.proposed.has(address);
  }

  private open(address: Address, socket: Socket): TcpLink {
    const old = this.links.get(address);
    if (old) {
      old.destroy();
      this.remove(old);
    }
    const link = new TcpLink(address, socket, (packet) => this.receiver.hear(packet));
    this.links.set(address, link);
    void link.closed.then(() => this.remove(link));
    this.receiver.found(address);
    return link;
  }

  private remove(link: TcpLink): void {
    if (this.links.get(link.address) === link) {
      this.links.delete(link.address);
      this.receiver.gone(link.address);
    }
  }
}

import {
  type Address,
  NodeGoneError,
  type ServingTransport,
  type TransportContext,
} from './transport.js';
import { checkSize } from './transports/handshake.js';

export interface MemoryNetworkOptions {
  /**
   * True if nodes are connected and notice when a connection opens or breaks. Otherwise, as with a
   * broker, packets to a missing node are lost, and only a probe shows that a node has left.
   *
   * @default true
   */
  readonly connections?: boolean;
  /**
   * Largest packet in bytes.
   *
   * @default 262144
   */
  readonly maxPacket?: number;
}

/** A test network within this process. Delivers in a later turn of the event loop. */
export class MemoryNetwork {
  /** Largest packet in bytes. */
  readonly maxPacket: number;
  private readonly connections: boolean;
  private readonly members = new Map<Address, MemoryTransport>();
  private readonly hung = new Set<Address>();
  private readonly cuts = new Set<string>();
  private readonly disconnected = new Set<string>();
  private underway: (() => unknown)[] = [];
  private isOnline = true;

  constructor({ connections = true, maxPacket = 256 * 1024 }: MemoryNetworkOptions = {}) {
    this.connections = connections;
    this.maxPacket = maxPacket;
  }

  /** Creates a transport for one node or client. */
  transport(): MemoryTransport {
    const member = new MemoryTransport(this);
    if (!this.connections) {
      member.probe = (address) => this.probe(member, address);
    }
    return member;
  }

  /** Loses packets between two nodes; neither notices. */
  cut(a: Address, b: Address): void {
    this.cuts.add(pair(a, b));
  }

  /** Breaks the connection; each sees the other as gone. */
  disconnect(a: Address, b: Address): void {
    this.disconnected.add(pair(a, b));
    this.notifyBoth(a, b, 'nodeDisconnected');
  }

  /** Undoes `cut` and `disconnect`. */
  mend(a: Address, b: Address): void {
    this.cuts.delete(pair(a, b));
    if (this.disconnected.delete(pair(a, b))) {
      this.notifyBoth(a, b, 'nodeConnected');
    }
  }

  /** Loses packets from and to the node; no node notices. */
  hang(address: Address): void {
    this.hung.add(address);
  }

  /** Undoes `hang`. */
  resume(address: Address): void {
    this.hung.delete(address);
  }

  /** Ends a node; the others notice. */
  kill(address: Address): void {
    const member = this.members.get(address);
    if (member) {
      this.leave(member);
    }
  }

  /** Stops or restarts the broker; all nodes notice. Meanwhile packets are lost. */
  broker(isUp: boolean): void {
    this.isOnline = isUp;
    for (const { context } of this.members.values()) {
      this.carry(() => context.receiver.online(isUp));
    }
  }

  /** @internal */
  join(member: MemoryTransport): void {
    this.members.set(member.context.address, member);
    for (const other of this.othersOf(member)) {
      this.notify(member, 'nodeConnected', other.context.address);
      this.notify(other, 'nodeConnected', member.context.address);
    }
  }

  /** @internal */
  leave(member: MemoryTransport): void {
    const others = this.othersOf(member);
    this.members.delete(member.context.address);
    for (const other of others) {
      this.notify(other, 'nodeDisconnected', member.context.address);
    }
  }

  /** @internal */
  send(from: MemoryTransport, to: Address, packet: Uint8Array): void {
    checkSize(packet, this.maxPacket);
    const receiver = this.members.get(to);
    if (receiver && this.areLinked(from, receiver)) {
      this.carry(() => this.deliver(from, receiver, packet));
    } else if (this.connections) {
      throw new NodeGoneError(to);
    }
  }

  /** @internal */
  othersOf(member: MemoryTransport): MemoryTransport[] {
    return [...this.members.values()].filter((other) => this.areLinked(member, other));
  }

  /**
   * Runs the action after all earlier packets.
   *
   * @internal
   */
  carry(action: () => unknown): void {
    if (this.underway.push(action) === 1) {
      setImmediate(() => {
        const now = this.underway;
        this.underway = [];
        now.forEach((each) => each());
      });
    }
  }

  private deliver(from: MemoryTransport, to: MemoryTransport, packet: Uint8Array): void {
    if (this.isOnline && this.areLinked(from, to) && this.answers(from, to.context.address)) {
      to.context.receiver.receive(new Uint8Array(packet));
    }
  }

  private async probe(from: MemoryTransport, address: Address): Promise<boolean> {
    const isThere = await new Promise<boolean>((resolve) => {
      this.carry(() => resolve(this.members.has(address)));
    });
    if (!this.isOnline || (isThere && !this.answers(from, address))) {
      throw new Error(`There was no answer from ${address}`);
    }
    return isThere;
  }

  private answers({ context }: MemoryTransport, address: Address): boolean {
    return (
      !this.cuts.has(pair(context.address, address)) &&
      !this.hung.has(context.address) &&
      !this.hung.has(address)
    );
  }

  private areLinked(one: MemoryTransport, other: MemoryTransport): boolean {
    const a = one.context;
    const b = other.context;
    return (
      this.isHere(one) &&
      this.isHere(other) &&
      a.address !== b.address &&
      a.namespace === b.namespace &&
      // Two clients have no connection.
      !(this.connections && a.role === 'client' && b.role === 'client') &&
      !this.disconnected.has(pair(a.address, b.address))
    );
  }

  private isHere(member: MemoryTransport): boolean {
    return this.members.get(member.context.address) === member;
  }

  private notifyBoth(a: Address, b: Address, event: 'nodeConnected' | 'nodeDisconnected'): void {
    for (const [address, other] of [
      [a, b],
      [b, a],
    ] as const) {
      const member = this.members.get(address);
      if (member && this.members.has(other)) {
        this.notify(member, event, other);
      }
    }
  }

  private notify(
    member: MemoryTransport,
    event: 'nodeConnected' | 'nodeDisconnected',
    address: Address,
  ): void {
    if (this.connections) {
      this.carry(() => this.isHere(member) && member.context.receiver[event](address));
    }
  }
}

/** One node's or client's transport. */
export class MemoryTransport implements ServingTransport {
  probe?: (address: Address) => Promise<boolean>;
  private started: TransportContext | undefined;

  constructor(private readonly network: MemoryNetwork) {}

  get maxPacket(): number {
    return this.network.maxPacket;
  }

  /** Set when a node starts the transport. */
  get context(): TransportContext {
    if (!this.started) {
      throw new Error('The transport has not been started');
    }
    return this.started;
  }

  async start(context: TransportContext): Promise<void> {
    this.started = context;
    this.network.join(this);
  }

  send(to: Address, packet: Uint8Array): void {
    this.network.send(this, to, packet);
  }

  broadcast(packet: Uint8Array): void {
    this.network
      .othersOf(this)
      .forEach(({ context }) => this.network.send(this, context.address, packet));
  }

  stop(): Promise<void> {
    return new Promise((resolve) => {
      this.network.carry(() => {
        this.network.leave(this);
        resolve();
      });
    });
  }
}

function pair(a: Address, b: Address): string {
  return a < b ? `${a} ${b}` : `${b} ${a}`;
}

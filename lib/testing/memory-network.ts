import {
  type Address,
  NodeGoneError,
  type ServingTransport,
  type TransportContext,
} from '../distribution/transport.js';
import { checkSize } from '../distribution/transports/names.js';

export interface MemoryNetworkOptions {
  /**
   * Whether there is a connection between any two, whose ends are told of each other. Otherwise it
   * is as with a broker: nobody is told, what is sent to nobody is lost, and who wants to know must
   * probe.
   * @default true
   */
  readonly connections?: boolean;
  /** The largest packet, in bytes. @default 262144 */
  readonly maxPacket?: number;
}

/**
 * A network within this process, for tests. It carries packets as real ones do, in turns of the
 * event loop after the one they were sent in, and breaks when it is told to.
 */
export class MemoryNetwork {
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

  /** A transport for one node or client. */
  transport(): MemoryTransport {
    const member = new MemoryTransport(this);
    if (!this.connections) {
      member.probe = (address) => this.probe(member, address);
    }
    return member;
  }

  /** From now on, what one of the two sends to the other is lost. Neither is told. */
  cut(a: Address, b: Address): void {
    this.cuts.add(pair(a, b));
  }

  /**
   * Breaks the connection between the two: both are told that the other has gone, though both go
   * on.
   */
  disconnect(a: Address, b: Address): void {
    this.disconnected.add(pair(a, b));
    this.tellBoth(a, b, 'nodeDisconnected');
  }

  /** Undoes `cut` and `disconnect`. */
  mend(a: Address, b: Address): void {
    this.cuts.delete(pair(a, b));
    if (this.disconnected.delete(pair(a, b))) {
      this.tellBoth(a, b, 'nodeConnected');
    }
  }

  /** From now on, all that comes from this node or goes to it is lost. Nobody is told. */
  hang(address: Address): void {
    this.hung.add(address);
  }

  /** Undoes `hang`. */
  resume(address: Address): void {
    this.hung.delete(address);
  }

  /** Ends a node at once, with what is on its way to it or from it; the others are told. */
  kill(address: Address): void {
    const member = this.members.get(address);
    if (member) {
      this.leave(member);
    }
  }

  /** Takes the broker away, or brings it back: all are told. What is sent meanwhile is lost. */
  broker(isUp: boolean): void {
    this.isOnline = isUp;
    for (const { station } of this.members.values()) {
      this.carry(() => station.receiver.online(isUp));
    }
  }

  /** @internal */
  join(member: MemoryTransport): void {
    this.members.set(member.station.address, member);
    for (const other of this.othersOf(member)) {
      this.tell(member, 'nodeConnected', other.station.address);
      this.tell(other, 'nodeConnected', member.station.address);
    }
  }

  /** @internal */
  leave(member: MemoryTransport): void {
    const others = this.othersOf(member);
    this.members.delete(member.station.address);
    for (const other of others) {
      this.tell(other, 'nodeDisconnected', member.station.address);
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

  /** Does this after all that has been sent before. @internal */
  carry(action: () => unknown): void {
    if (this.underway.push(action) === 1) {
      setImmediate(() => {
        const now = this.underway;
        this.underway = [];
        now.forEach((each) => each());
      });
    }
  }

  /** Packets are lost where they would arrive: what happened while they were under way counts. */
  private deliver(from: MemoryTransport, to: MemoryTransport, packet: Uint8Array): void {
    if (this.isOnline && this.areLinked(from, to) && this.answers(from, to.station.address)) {
      to.station.receiver.receive(new Uint8Array(packet));
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

  private answers({ station }: MemoryTransport, address: Address): boolean {
    return (
      !this.cuts.has(pair(station.address, address)) &&
      !this.hung.has(station.address) &&
      !this.hung.has(address)
    );
  }

  private areLinked(one: MemoryTransport, other: MemoryTransport): boolean {
    const a = one.station;
    const b = other.station;
    return (
      this.isHere(one) &&
      this.isHere(other) &&
      a.address !== b.address &&
      a.namespace === b.namespace &&
      // Nobody connects to a client.
      !(this.connections && a.role === 'client' && b.role === 'client') &&
      !this.disconnected.has(pair(a.address, b.address))
    );
  }

  private isHere(member: MemoryTransport): boolean {
    return this.members.get(member.station.address) === member;
  }

  private tellBoth(a: Address, b: Address, event: 'nodeConnected' | 'nodeDisconnected'): void {
    for (const [address, other] of [
      [a, b],
      [b, a],
    ] as const) {
      const member = this.members.get(address);
      if (member && this.members.has(other)) {
        this.tell(member, event, other);
      }
    }
  }

  private tell(
    member: MemoryTransport,
    event: 'nodeConnected' | 'nodeDisconnected',
    address: Address,
  ): void {
    if (this.connections) {
      this.carry(() => this.isHere(member) && member.station.receiver[event](address));
    }
  }
}

/** The transport of one node or client. */
export class MemoryTransport implements ServingTransport {
  probe?: (address: Address) => Promise<boolean>;
  private started: TransportContext | undefined;

  constructor(private readonly network: MemoryNetwork) {}

  get maxPacket(): number {
    return this.network.maxPacket;
  }

  get station(): TransportContext {
    if (!this.started) {
      throw new Error('The transport has not been started');
    }
    return this.started;
  }

  async start(station: TransportContext): Promise<void> {
    this.started = station;
    this.network.join(this);
  }

  send(to: Address, packet: Uint8Array): void {
    this.network.send(this, to, packet);
  }

  broadcast(packet: Uint8Array): void {
    this.network
      .othersOf(this)
      .forEach(({ station }) => this.network.send(this, station.address, packet));
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

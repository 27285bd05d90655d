import type { Observable } from 'rxjs';

/**
 * Where packets for one incarnation of a node go: its id, and an epoch that is new with every
 * start. Made of letters, digits, `_` and `-`.
 */
export type Address = string;

/** Whom a transport tells what it hears. */
export interface Receiver {
  /** A packet has come. Who sent it stands in it. */
  receive(packet: Uint8Array): void;
  /**
   * There is a way to this node now. Only from transports that know, as those with connections do.
   */
  nodeConnected(address: Address): void;
  /**
   * There is no way to this node any more: it ended, or its connection did. What it was sent may
   * not have come there.
   */
  nodeDisconnected(address: Address): void;
  /**
   * Whether the transport can reach anybody: false while its broker is away. Without news it can.
   */
  online(isOnline: boolean): void;
}

/**
 * Answers the message of a client that speaks no frames, only Nest's own messages: with one value,
 * or with one after the other.
 */
export type JsonHandler = (data: unknown) => Promise<unknown> | Observable<unknown>;

/** What a node brings to its transport. */
export interface TransportContext {
  readonly namespace: string;
  readonly address: Address;
  /** A client listens for answers alone: nobody connects to it. */
  readonly role: 'node' | 'client';
  readonly receiver: Receiver;
  /** By the name of the serving; for Nest's own clients, and those of other languages. */
  readonly jsonHandlers: ReadonlyMap<string, JsonHandler>;
}

/**
 * Carries packets between nodes. They come in the order in which they were sent from one node to
 * another, each whole and once, or not at all.
 *
 * It knows nothing of what is in a packet but its length, see `packetLength`.
 */
export interface ServingTransport {
  /** The bytes of the largest packet that it carries; known from the start on. */
  readonly maxPacket: number;
  /** Resolves when packets can come and go. */
  start(station: TransportContext): Promise<void>;
  /**
   * Sends to one node. The packet may be sent later: its bytes must not change any more.
   *
   * @throws NodeGoneError, at once or by rejecting, when it is known that nobody is there
   */
  send(to: Address, packet: Uint8Array): void | Promise<void>;
  /** Sends to all nodes and clients that can be reached. */
  broadcast(packet: Uint8Array): void | Promise<void>;
  /**
   * Ends the connection with a node that has been silent for too long: should there be a way again,
   * another one finds it sooner.
   */
  drop?(address: Address): void;
  /**
   * Whether the node is there, for transports that would not be told of its end; rejects when that
   * cannot be said.
   */
  probe?(address: Address): Promise<boolean>;
  /**
   * Ends all connections, once what was sent has left.
   *
   * @param patience the milliseconds after which it does so in any case; 5000 where there is none
   */
  stop(patience?: number): Promise<void>;
}

/** It is known that nobody is at the address: the packet was not delivered. */
export class NodeGoneError extends Error {
  override readonly name = 'NodeGoneError';

  constructor(readonly address: Address) {
    super(`There is no node ${address}`);
  }
}

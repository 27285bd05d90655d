import type { Observable } from 'rxjs';
import type { Secrets } from './wire/signature.js';

/** Identifies one start of a node: letters, digits, `_` and `-`. */
export type Address = string;

/** Receives a transport's packets and events. */
export interface Receiver {
  /**
   * Receives a packet, which names its sender.
   *
   * @param via the node whose connection it came over, if any
   */
  receive(packet: Uint8Array, via?: Address): void;
  /** A node connected; only for transports with connections between nodes. */
  nodeConnected(address: Address): void;
  /** The connection to a node ended; packets to it may be lost. */
  nodeDisconnected(address: Address): void;
  /** False when the broker is lost, true when it is back. Starts online. */
  online(isOnline: boolean): void;
}

/** Answers a JSON client's message. */
export type JsonHandler = (data: unknown) => Promise<unknown> | Observable<unknown>;

/** The node that starts a transport. */
export interface TransportContext {
  /** The cluster's namespace. */
  readonly namespace: string;
  /** The node's address. */
  readonly address: Address;
  /** No node connects to a client. */
  readonly role: 'node' | 'client';
  /** The transport's receiver. */
  readonly receiver: Receiver;
  /** Handlers for JSON messages, by serving name. */
  readonly jsonHandlers: ReadonlyMap<string, JsonHandler>;
}

/**
 * Carries packets between nodes, in order, whole and at most once. It may read only a packet's
 * length, with `packetLength`.
 */
export interface ServingTransport {
  /**
   * Largest packet in bytes; set once started. Larger frames are split, which limits the memory of
   * half-received ones.
   */
  readonly maxPacket: number;
  /**
   * Most unconfirmed bytes to one node. The sender queues the rest.
   *
   * @default 8388608
   */
  readonly window?: number;
  /** Resolves when packets can be sent and received. */
  start(context: TransportContext): Promise<void>;
  /**
   * Sends to one node, possibly later: the packet doesn't change until passed to `free`. Without
   * `free`, its memory is not reused.
   *
   * @throws NodeGoneError, also by rejecting
   */
  send(to: Address, packet: Uint8Array, free?: (packet: Uint8Array) => void): void | Promise<void>;
  /** Sends to all reachable nodes and clients. */
  broadcast(packet: Uint8Array): void | Promise<void>;
  /**
   * Bytes received from the node: while they grow, it is alive. For transports with connections
   * between nodes.
   */
  received?(address: Address): number | undefined;
  /**
   * Looks for other nodes early: one is leaving or lost, or a call waits. For transports that look
   * up addresses; called often.
   */
  lookUp?(): void;
  /** Ends a silent node's connection, to make room. */
  drop?(address: Address): void;
  /**
   * True if the node is connected; rejects if unknown. For transports that don't call
   * `nodeDisconnected`.
   */
  probe?(address: Address): Promise<boolean>;
  /**
   * Closes all connections after the last packets.
   *
   * @param timeout milliseconds, 5000 by default
   */
  stop(timeout?: number): Promise<void>;
}

/** One of Nest's transports, between nodes. */
export interface TransportKind<Given = object> {
  /** Names it in messages. */
  readonly name: string;
  /** The names in `options` that set its address. */
  readonly address: readonly string[];
  /** True if nodes connect to each other. */
  readonly isBrokerless: boolean;
  /** Loads its packages; doesn't start it. */
  open(given: Given, cluster: TransportCluster): Promise<ServingTransport>;
}

export interface TransportCluster {
  readonly namespace: string;
  readonly secret: Secrets | undefined;
}

/** The node is known to be gone: the packet was not delivered. */
export class NodeGoneError extends Error {
  /** The class's name. */
  override readonly name = 'NodeGoneError';

  constructor(
    /** The node's address. */
    readonly address: Address,
  ) {
    super(`There is no node ${address}`);
  }
}

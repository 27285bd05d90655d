import type { Observable } from 'rxjs';

/** Identifies one start of a node. Consists of letters, digits, `_` and `-`. */
export type Address = string;

/** Receives packets and events of a transport. */
export interface Receiver {
  /** A packet was received; it names its sender. */
  receive(packet: Uint8Array): void;
  /** A node is connected. Only transports with connections between nodes call this. */
  nodeConnected(address: Address): void;
  /** The connection to a node ended. Packets to it may be lost. */
  nodeDisconnected(address: Address): void;
  /** The transport went offline, because its broker is away, or online again. Starts online. */
  online(isOnline: boolean): void;
}

/** Answers the JSON message of a client of Nest, or of another language, with values. */
export type JsonHandler = (data: unknown) => Promise<unknown> | Observable<unknown>;

/** The node that starts a transport. */
export interface TransportContext {
  /** The namespace of the cluster. */
  readonly namespace: string;
  /** The address of the node. */
  readonly address: Address;
  /** No node connects to a client. */
  readonly role: 'node' | 'client';
  /** Receives packets and events of the transport. */
  readonly receiver: Receiver;
  /** The handlers of JSON messages, by the name of the serving. */
  readonly jsonHandlers: ReadonlyMap<string, JsonHandler>;
}

/**
 * Carries packets between nodes. Packets from one node to another arrive in order, each whole and
 * at most once.
 *
 * Of a packet it may read only the length, by `packetLength`.
 */
export interface ServingTransport {
  /**
   * The bytes of the largest packet that it carries; set once it has started. Larger frames are
   * split, on connections too: then one place limits the memory of frames that are half received.
   */
  readonly maxPacket: number;
  /**
   * The most bytes that may be on their way to one node before it has confirmed some. More wait at
   * the sender.
   *
   * @default 8388608
   */
  readonly window?: number;
  /** Resolves when packets can be sent and received. */
  start(context: TransportContext): Promise<void>;
  /**
   * Sends to one node. The packet may be sent later, so its bytes do not change before `free` is
   * called with it. A transport need not call that; then the memory is not used again.
   *
   * @throws NodeGoneError, at once or by rejecting, when the node is known to be gone
   */
  send(to: Address, packet: Uint8Array, free?: (packet: Uint8Array) => void): void | Promise<void>;
  /** Sends to all reachable nodes and clients. */
  broadcast(packet: Uint8Array): void | Promise<void>;
  /**
   * The bytes that were received of the node so far, also those of a packet that has not ended:
   * while it grows, the node is alive. For transports with connections between nodes.
   */
  received?(address: Address): number | undefined;
  /** Ends the connection to a silent node, so that a new one can replace it. */
  drop?(address: Address): void;
  /**
   * Whether the node is connected, for transports that do not call `nodeDisconnected`; rejects when
   * that is unknown.
   */
  probe?(address: Address): Promise<boolean>;
  /**
   * Ends all connections after the last packets have left, or after so many milliseconds.
   *
   * @param timeout 5000 by default
   */
  stop(timeout?: number): Promise<void>;
}

/** The node is known to be gone: the packet was not delivered. */
export class NodeGoneError extends Error {
  /** The name of the class. */
  override readonly name = 'NodeGoneError';

  constructor(
    /** The address of the node. */
    readonly address: Address,
  ) {
    super(`There is no node ${address}`);
  }
}

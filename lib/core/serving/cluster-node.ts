import type { ServingSignature } from '../definition/serving-signature.js';

/** A node or client of the cluster, as of its last heartbeat. */
export interface ClusterNode {
  /** Its `nodeId`. */
  readonly id: string;
  /** Its address, new with each start. */
  readonly address: string;
  /** A client calls and serves nothing. */
  readonly role: 'node' | 'client';
  /**
   * `draining`: it finishes its calls and takes no more. `silent`: it gets no calls until its next
   * heartbeat.
   */
  readonly state: 'up' | 'draining' | 'silent';
  /** Whether it is this node. */
  readonly isSelf: boolean;
  /** Its servings, each with weight and load. */
  readonly servings: readonly ServingStatus[];
}

/** One serving of a node, as of the node's last heartbeat. */
export interface ServingStatus {
  readonly name: string;
  /** Its `distribution.weight`: 0 or more, also a fraction. */
  readonly weight: number;
  /** The partitions that work. */
  readonly partitions: number;
  /** The calls of other nodes that have no answer yet. */
  readonly activeCalls: number;
  /** The rows in its queue. */
  readonly queued: number;
  /**
   * Milliseconds that a batch runs, as a moving average, without the time in the queue; 0 before
   * the first batch.
   */
  readonly batchTime: number;
  /** Whether a call may run again when its answer is lost. */
  readonly idempotent: boolean;
  /**
   * Whether it answers calls: it is loaded and warm, is not closing, and has a working partition.
   */
  readonly isReady: boolean;
  /**
   * Its inputs and outputs; `undefined` where nothing declares them, and where it does not fit
   * into the 16 KB for all servings of a node.
   */
  readonly signature?: ServingSignature | undefined;
}

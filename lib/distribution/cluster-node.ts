import type { Member } from './member.js';
import type { NodeInfo, ServedInfo } from './node-info.js';
import type { Address } from './transport.js';

/** A node or client that this node knows, as its last heartbeat says. */
export interface ClusterNode {
  /** Its `nodeId`. */
  readonly id: string;
  /** Its address, new with each start. */
  readonly address: Address;
  /** A client calls and serves nothing. */
  readonly role: NodeInfo['role'];
  /** `draining`: it shuts down. `silent`: it may be gone, and gets no calls until it is heard again. */
  readonly state: NodeInfo['state'] | 'silent';
  /** Whether it is this node. */
  readonly isSelf: boolean;
  /** What it serves, with the weight and the load of each serving. */
  readonly servings: readonly ServedInfo[];
}

export function clusterNodeOf({ info, isSuspect }: Member, self: Address): ClusterNode {
  const { id, address, role, state, servings } = info;
  return { id, address, role, state: isSuspect ? 'silent' : state, isSelf: address === self, servings };
}

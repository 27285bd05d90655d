import type { NodeInfo, ServingStatus } from './node-info.js';
import type { Candidate } from './balancer.js';
import type { Address } from '../transport.js';

/** One incarnation of a node, as its last beat tells. */
export class Member {
  /**
   * Whether it may not be there: it has been silent for long, or was not heard since there was no
   * way to anybody. Nothing is sent there.
   */
  isSuspect = false;
  /** Whether another node has been heard that goes by the same id. */
  hasDuplicate = false;
  /** When it was last sent the state of this node, as an answer to what it has sent. */
  answeredAt = -Infinity;
  private owned: readonly OwnedServing[];

  constructor(
    public info: NodeInfo,
    /** When it was heard last. */
    public lastSeenAt: number,
    /** When it was heard first. */
    readonly since = lastSeenAt,
  ) {
    this.owned = ownedBy(info);
  }

  /** What it may be picked for. */
  get candidacies(): readonly (Candidate & { readonly served: ServingStatus })[] {
    return this.isSuspect || this.info.state === 'draining'
      ? []
      : this.owned.filter(({ share }) => share > 0);
  }

  /** Whether it would be picked for the same servings as often as now, and treated alike. */
  isAlike({ state, servings }: NodeInfo): boolean {
    const { info, owned } = this;
    return (
      !this.isSuspect &&
      state === info.state &&
      servings.length === owned.length &&
      servings.every((served, index) => owned[index]!.isAlike(served))
    );
  }

  /** Takes a beat of which only the load is new. */
  updateLoad(info: NodeInfo): void {
    this.info = info;
    info.servings.forEach((served, index) => (this.owned[index]!.served = served));
  }

  update(info: NodeInfo): void {
    this.info = info;
    this.isSuspect = false;
    this.owned = ownedBy(info);
  }
}

/** A serving of a node. Those who hold it see the load as the last beat tells it. */
class OwnedServing implements Candidate {
  readonly id: string;
  readonly address: string;
  readonly share: number;

  constructor(
    { id, address }: NodeInfo,
    public served: ServingStatus,
  ) {
    this.id = id;
    this.address = address;
    this.share = shareOf(served);
  }

  isAlike(served: ServingStatus): boolean {
    const { name, idempotent } = this.served;
    return (
      served.name === name && served.idempotent === idempotent && shareOf(served) === this.share
    );
  }
}

function ownedBy(info: NodeInfo): readonly OwnedServing[] {
  return info.servings.map((served) => new OwnedServing(info, served));
}

function shareOf({ weight, partitions, isReady }: ServingStatus): number {
  return isReady ? weight * partitions : 0;
}

/** A node or client that this node knows, as its last heartbeat says. */
export interface ClusterNode {
  /** Its `nodeId`. */
  readonly id: string;
  /** Its address, new with each start. */
  readonly address: Address;
  /** A client calls and serves nothing. */
  readonly role: NodeInfo['role'];
  /**
   * `draining`: it shuts down. `silent`: it may be gone, and gets no calls until it beats again.
   */
  readonly state: NodeInfo['state'] | 'silent';
  /** Whether it is this node. */
  readonly isSelf: boolean;
  /** What it serves, with the weight and the load of each serving. */
  readonly servings: readonly ServingStatus[];
}

export function clusterNodeOf({ info, isSuspect }: Member, self: Address): ClusterNode {
  const { id, address, role, servings } = info;
  const state = isSuspect ? 'silent' : info.state;
  return { id, address, role, state, isSelf: address === self, servings };
}

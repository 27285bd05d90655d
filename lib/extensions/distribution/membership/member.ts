import type { ClusterNode, ServingStatus } from '../../../doors/servings.js';
import type { NodeInfo } from './node-info.js';
import type { Candidate } from './balancer.js';
import type { Address } from '../transport.js';

export class Member {
  /**
   * True after long silence, or without a heartbeat since the transport was offline. It gets no
   * calls.
   */
  isSuspect = false;
  isSilent = false;
  /** Since the last check. */
  wasHeard = false;
  /** True after an invalid packet, until a valid one: its bytes are no sign of life. */
  sendsInvalid = false;
  /** Bytes, by the last check. */
  received: number | undefined;
  hasDuplicate = false;
  repliedAt = -Infinity;
  private servings: readonly MemberServing[];

  constructor(
    public info: NodeInfo,
    public lastSeenAt: number,
    readonly since = lastSeenAt,
  ) {
    this.servings = servingsOf(info);
  }

  get candidates(): readonly Candidate[] {
    return this.isSuspect || this.info.state === 'draining'
      ? []
      : this.servings.filter(({ share }) => share > 0);
  }

  isAlike({ state, servings: statuses }: NodeInfo): boolean {
    const { info, servings } = this;
    return (
      !this.isSuspect &&
      state === info.state &&
      statuses.length === servings.length &&
      statuses.every((status, index) => servings[index]!.isAlike(status))
    );
  }

  updateLoad(info: NodeInfo): void {
    this.info = info;
    info.servings.forEach((status, index) => (this.servings[index]!.status = status));
  }

  update(info: NodeInfo): void {
    this.info = info;
    this.isSuspect = false;
    this.isSilent = false;
    this.servings = servingsOf(info);
  }
}

class MemberServing implements Candidate {
  readonly id: string;
  readonly address: string;
  readonly share: number;

  constructor(
    { id, address }: NodeInfo,
    public status: ServingStatus,
  ) {
    this.id = id;
    this.address = address;
    this.share = shareOf(status);
  }

  isAlike(status: ServingStatus): boolean {
    const { name, idempotent } = this.status;
    return (
      status.name === name && status.idempotent === idempotent && shareOf(status) === this.share
    );
  }
}

function servingsOf(info: NodeInfo): readonly MemberServing[] {
  return info.servings.map((status) => new MemberServing(info, status));
}

function shareOf({ weight, partitions, isReady }: ServingStatus): number {
  return isReady ? weight * partitions : 0;
}

/** An offline node knows only of itself. */
export function clusterNodeOf(
  { info, isSuspect }: Member,
  { self, isOnline }: { readonly self: Address; readonly isOnline: boolean },
): ClusterNode {
  const { id, address, role, servings } = info;
  const isSelf = address === self;
  const state = isSuspect || !(isOnline || isSelf) ? 'silent' : info.state;
  return { id, address, role, state, isSelf, servings };
}

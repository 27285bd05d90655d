import { Logger } from '@nestjs/common';
import { type Observable, Subject } from 'rxjs';
import { formatValue } from '../../format.js';
import { Member } from './member.js';
import type { NodeInfo } from './node-info.js';
import { type Candidate, Candidates } from './balancer.js';
import type { Address } from '../transport.js';

export interface MembersOptions {
  /** Milliseconds of silence after which a node is not picked. */
  readonly suspectAfter: number;
  /** Milliseconds of silence after which a node has left. */
  readonly downAfter: number;
  /** The nodes that are kept; the beats of others are ignored. */
  readonly maxNodes: number;
}

/**
 * What has become of a node: `changed` when it may be picked for something else, or more or less
 * often.
 */
export interface MemberChange {
  readonly type: 'joined' | 'changed' | 'left';
  readonly address: Address;
  /** What it said last. */
  readonly info: NodeInfo;
}

const nobody = new Candidates([]);

/**
 * The nodes of the cluster, by their beats. All times are milliseconds of one clock; `check` is to
 * be called more often than every `suspectAfter`, or else takes it that nobody has listened
 * meanwhile.
 */
export class Members {
  readonly changes$: Observable<MemberChange>;
  private readonly logger = new Logger('Serving');
  private readonly changes = new Subject<MemberChange>();
  private readonly byId = new Map<string, Member>();
  private readonly byAddress = new Map<Address, Member>();
  private readonly candidateLists = new Map<string, Set<Candidate>>();
  private readonly built = new Map<string, Candidates>();
  private checkedAt: number | undefined;
  private isFrozen = false;
  private hasRefused = false;

  constructor(private readonly options: MembersOptions) {
    this.changes$ = this.changes.asObservable();
  }

  get all(): readonly Member[] {
    return [...this.byId.values()];
  }

  get(address: Address): Member | undefined {
    return this.byAddress.get(address);
  }

  /** Who may be picked for the calls of a serving; the same object until that changes. */
  candidates(serving: string): Candidates {
    const candidates = this.candidateLists.get(serving);
    if (!candidates) {
      return nobody;
    }
    const owners = this.built.get(serving) ?? new Candidates([...candidates]);
    this.built.set(serving, owners);
    return owners;
  }

  /**
   * A beat has come. One that is older than what is known is ignored. That of a later epoch ends
   * the incarnation before it, and one after an outage ends what was under way before that.
   */
  hear(info: NodeInfo, now: number): void {
    const known = this.byId.get(info.id);
    const holder = this.byAddress.get(info.address);
    if (holder !== undefined && holder !== known) {
      return;
    }
    if (!known) {
      if (this.hasRoom(info)) {
        this.join(new Member(info, now));
      }
    } else if (isAnew(info, known.info)) {
      this.join(new Member(info, now), known);
    } else if (known !== holder) {
      this.checkForDuplicate(known, info, now);
    } else if (isNext(info, known.info)) {
      this.update(known, info, now);
    }
  }

  /** There is no way to the node any more. */
  gone(address: Address): void {
    const member = this.byAddress.get(address);
    if (member) {
      this.remove(member);
      this.tell('left', member);
    }
  }

  /** Finds those who have been silent for too long, and gives their addresses. */
  check(now: number): readonly Address[] {
    const { suspectAfter, downAfter } = this.options;
    const hasPaused = this.checkedAt !== undefined && now - this.checkedAt > suspectAfter;
    this.checkedAt = now;
    if (this.isFrozen) {
      return [];
    }
    if (hasPaused) {
      this.refresh(now);
    }
    const silent: Address[] = [];
    for (const member of this.byId.values()) {
      const silence = now - member.lastSeenAt;
      if (silence >= downAfter) {
        silent.push(member.info.address);
        this.remove(member);
        this.tell('left', member);
      } else if (silence >= suspectAfter) {
        this.suspect(member);
      }
    }
    return silent;
  }

  /**
   * While nobody can be heard, since the broker is away, nobody's silence counts. Afterwards it
   * begins anew, and nobody is picked before it has been heard: others may not have found the
   * broker yet, which would lose what they are sent.
   */
  freeze(isFrozen: boolean, now: number): void {
    if (this.isFrozen && !isFrozen) {
      for (const member of this.byId.values()) {
        member.lastSeenAt = now;
        this.suspect(member);
      }
    }
    this.isFrozen = isFrozen;
  }

  private join(member: Member, former?: Member): void {
    if (former) {
      this.remove(former);
    }
    this.byId.set(member.info.id, member);
    this.byAddress.set(member.info.address, member);
    this.propose(member);
    if (former) {
      this.tell('left', former);
    }
    this.tell('joined', member);
  }

  private update(member: Member, info: NodeInfo, now: number): void {
    member.lastSeenAt = now;
    if (member.isAlike(info)) {
      member.updateLoad(info);
      return;
    }
    this.withdraw(member);
    member.update(info);
    this.propose(member);
    this.tell('changed', member);
  }

  /**
   * What the incarnation before it has said last may still come, and it may be about to end; but
   * not for long.
   */
  private checkForDuplicate(member: Member, other: NodeInfo, now: number): void {
    if (
      other.state === 'up' &&
      now - member.since >= this.options.downAfter &&
      !member.hasDuplicate
    ) {
      member.hasDuplicate = true;
      this.logger.error(
        `Two nodes have the nodeId ${formatValue(other.id)}: ${member.info.address} and ` +
          `${other.address}. The latter gets no calls, as it started before the other. ` +
          'Each node needs a nodeId of its own, or none, which makes one up',
      );
    }
  }

  private suspect(member: Member): void {
    if (!member.isSuspect) {
      this.withdraw(member);
      member.isSuspect = true;
      this.tell('changed', member);
    }
  }

  private refresh(now: number): void {
    for (const member of this.byId.values()) {
      member.lastSeenAt = now;
      if (member.isSuspect) {
        member.isSuspect = false;
        this.propose(member);
        this.tell('changed', member);
      }
    }
  }

  private remove(member: Member): void {
    this.byId.delete(member.info.id);
    this.byAddress.delete(member.info.address);
    this.withdraw(member);
  }

  private propose({ candidacies }: Member): void {
    for (const owner of candidacies) {
      const { name } = owner.served;
      const candidates = this.candidateLists.get(name) ?? new Set();
      this.candidateLists.set(name, candidates.add(owner));
      this.built.delete(name);
    }
  }

  private withdraw({ candidacies }: Member): void {
    for (const owner of candidacies) {
      const { name } = owner.served;
      const candidates = this.candidateLists.get(name);
      candidates?.delete(owner);
      if (candidates?.size === 0) {
        this.candidateLists.delete(name);
      }
      this.built.delete(name);
    }
  }

  private hasRoom({ id, address }: NodeInfo): boolean {
    const { maxNodes } = this.options;
    const hasRoom = this.byId.size < maxNodes;
    if (!hasRoom && !this.hasRefused) {
      this.hasRefused = true;
      this.logger.warn(
        `Node ${formatValue(id)} (${address}) is ignored, as will be others: there are ` +
          `${maxNodes} nodes already, which is the limit`,
      );
    }
    return hasRoom;
  }

  private tell(type: MemberChange['type'], { info }: Member): void {
    this.changes.next({ type, address: info.address, info });
  }
}

/** Whether the node has started anew, or comes back from an outage. */
function isAnew({ epoch, address, outages }: NodeInfo, known: NodeInfo): boolean {
  return (
    epoch > known.epoch ||
    (epoch === known.epoch && address === known.address && outages > known.outages)
  );
}

function isNext({ epoch, outages, seq }: NodeInfo, known: NodeInfo): boolean {
  return epoch === known.epoch && outages === known.outages && seq > known.seq;
}

import { Logger } from '@nestjs/common';
import { type Observable, Subject } from 'rxjs';
import { formatValue } from '../../../doors/text.js';
import { Member } from './member.js';
import type { NodeInfo } from './node-info.js';
import { type Candidate, Candidates } from './balancer.js';
import type { Address } from '../transport.js';

export interface MembersOptions {
  /** Milliseconds of silence. */
  readonly suspectAfter: number;
  /** Milliseconds of silence. */
  readonly downAfter: number;
  readonly maxNodes: number;
}

/** `changed`: other servings or shares. */
export interface MemberChange {
  readonly type: 'joined' | 'changed' | 'left';
  readonly address: Address;
  readonly info: NodeInfo;
}

/** The last node that had a serving, once it is gone. */
export interface FormerOwner {
  readonly id: string;
  /** True after an orderly shutdown. */
  readonly hasLeft: boolean;
  /** Milliseconds of the members' clock. */
  readonly lastSeenAt: number;
}

const none = new Candidates([]);

const MOST_NAMES = 10_000;

/**
 * Times are milliseconds of one clock. After a stall of this process, every node's silence starts
 * anew.
 */
export class Members {
  readonly changes$: Observable<MemberChange>;
  /** Servings that a node has had. */
  readonly formerOwners = new Map<string, FormerOwner | undefined>();
  private readonly logger = new Logger('Serving');
  private readonly changes = new Subject<MemberChange>();
  private readonly byId = new Map<string, Member>();
  private readonly byAddress = new Map<Address, Member>();
  private readonly candidatesByServing = new Map<string, Set<Candidate>>();
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

  /** Returns the same object until the candidates change. */
  candidates(serving: string): Candidates {
    const candidates = this.candidatesByServing.get(serving);
    if (!candidates) {
      return none;
    }
    const built = this.built.get(serving) ?? new Candidates([...candidates]);
    this.built.set(serving, built);
    return built;
  }

  /**
   * Ignores outdated heartbeats. After an outage the node leaves and rejoins: its calls may be
   * lost.
   */
  receive(info: NodeInfo, now: number): void {
    const known = this.byId.get(info.id);
    const holder = this.byAddress.get(info.address);
    if (holder !== undefined && holder !== known) {
      return;
    }
    if (!known) {
      if (this.hasRoom(info)) {
        this.join(new Member(info, now));
      }
    } else if (isNewIncarnation(info, known.info)) {
      this.join(new Member(info, now), known);
    } else if (known !== holder) {
      this.checkForDuplicate(known, info, now);
    } else if (isNext(info, known.info)) {
      this.update(known, info, now);
    }
  }

  hear(address: Address): void {
    const member = this.byAddress.get(address);
    if (member) {
      member.wasHeard = true;
      member.sendsInvalid = false;
    }
  }

  distrust(address: Address): void {
    const member = this.byAddress.get(address);
    if (member) {
      member.sendsInvalid = true;
    }
  }

  disconnect(address: Address): void {
    const member = this.byAddress.get(address);
    if (member) {
      this.leave(member);
    }
  }

  checkSilence(now: number): readonly Address[] {
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
      if (member.wasHeard) {
        this.sawAlive(member, now);
      }
      const silence = now - member.lastSeenAt;
      if (silence >= downAfter) {
        silent.push(member.info.address);
        this.leave(member);
      } else if (silence >= suspectAfter) {
        this.suspect(member, true);
      }
    }
    return silent;
  }

  /**
   * Silence doesn't count offline. Afterwards a node needs a new heartbeat: it may not have
   * reconnected.
   */
  freeze(isFrozen: boolean, now: number): void {
    if (this.isFrozen && !isFrozen) {
      for (const member of this.byId.values()) {
        member.lastSeenAt = now;
        member.wasHeard = false;
        this.suspect(member);
        member.isSilent = false;
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
    this.addCandidates(member);
    this.remember(member);
    if (former) {
      this.notify('left', former);
    }
    this.notify('joined', member);
  }

  private update(member: Member, info: NodeInfo, now: number): void {
    member.lastSeenAt = now;
    if (member.isAlike(info)) {
      member.updateLoad(info);
      return;
    }
    this.removeCandidates(member);
    member.update(info);
    this.addCandidates(member);
    this.remember(member);
    this.notify('changed', member);
  }

  /** Both incarnations' heartbeats may arrive after a restart. */
  private checkForDuplicate(member: Member, other: NodeInfo, now: number): void {
    if (
      other.state === 'up' &&
      now - member.since >= this.options.downAfter &&
      !member.hasDuplicate
    ) {
      member.hasDuplicate = true;
      this.logger.error(
        `Two nodes have the nodeId ${formatValue(other.id)}: ${member.info.address} and ` +
          `${other.address}. The latter started first and gets no calls. ` +
          'Give each node a nodeId of its own, or none',
      );
    }
  }

  private suspect(member: Member, isSilent = false): void {
    if (!member.isSuspect) {
      this.removeCandidates(member);
      member.isSuspect = true;
      member.isSilent = isSilent;
      this.notify('changed', member);
    }
  }

  private refresh(now: number): void {
    for (const member of this.byId.values()) {
      member.lastSeenAt = now;
      this.trust(member);
    }
  }

  private sawAlive(member: Member, now: number): void {
    member.wasHeard = false;
    member.lastSeenAt = now;
    if (member.isSilent) {
      this.trust(member);
    }
  }

  private trust(member: Member): void {
    if (member.isSuspect) {
      member.isSuspect = false;
      member.isSilent = false;
      this.addCandidates(member);
      this.notify('changed', member);
    }
  }

  private remember({ info }: Member): void {
    for (const { name } of info.servings) {
      if (this.formerOwners.size < MOST_NAMES && !this.formerOwners.has(name)) {
        this.formerOwners.set(name, undefined);
      }
    }
  }

  private leave(member: Member): void {
    this.remove(member);
    const { info, lastSeenAt } = member;
    const owner = { id: info.id, hasLeft: info.state === 'draining', lastSeenAt };
    for (const { name } of info.servings) {
      if (this.formerOwners.has(name)) {
        this.formerOwners.set(name, owner);
      }
    }
    this.notify('left', member);
  }

  private remove(member: Member): void {
    this.byId.delete(member.info.id);
    this.byAddress.delete(member.info.address);
    this.removeCandidates(member);
  }

  private addCandidates({ candidates }: Member): void {
    for (const candidate of candidates) {
      const { name } = candidate.status;
      const all = this.candidatesByServing.get(name) ?? new Set();
      this.candidatesByServing.set(name, all.add(candidate));
      this.built.delete(name);
    }
  }

  private removeCandidates({ candidates }: Member): void {
    for (const candidate of candidates) {
      const { name } = candidate.status;
      const all = this.candidatesByServing.get(name);
      all?.delete(candidate);
      if (all?.size === 0) {
        this.candidatesByServing.delete(name);
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
        `Node ${formatValue(id)} (${address}) and further ones are ignored: ` +
          `${maxNodes} nodes are the limit`,
      );
    }
    return hasRoom;
  }

  private notify(type: MemberChange['type'], { info }: Member): void {
    this.changes.next({ type, address: info.address, info });
  }
}

function isNewIncarnation({ epoch, address, outages }: NodeInfo, known: NodeInfo): boolean {
  return (
    epoch > known.epoch ||
    (epoch === known.epoch && address === known.address && outages > known.outages)
  );
}

function isNext({ epoch, outages, seq }: NodeInfo, known: NodeInfo): boolean {
  return epoch === known.epoch && outages === known.outages && seq > known.seq;
}

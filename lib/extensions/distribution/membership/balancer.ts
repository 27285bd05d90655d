import { firstValueFrom, merge, Subject, timer } from 'rxjs';
import { InvalidServingError } from '../../../index.js';
import { type ServingStatus } from '../../../doors/servings.js';
import { formatValue } from '../../../doors/text.js';
import type { Address } from '../transport.js';
import type { NodeInfo } from './node-info.js';
import type { Members } from './members.js';

/**
 * Picks a node. `weighted`: at random, by weight × partitions. `least-loaded`: the better of two
 * such picks, by this process's active calls and the batch time.
 */
export type Balance = 'weighted' | 'least-loaded' | ChooseNode;

/** Returns one of the candidates (never an empty list), or undefined for no node. */
export type ChooseNode = (
  candidates: readonly Candidate[],
  context: BalanceContext,
) => Candidate | undefined;

export interface BalanceContext {
  readonly serving: string;
  /**
   * This process's unanswered calls to a node, over all servings. Early failures count for as long
   * as answered calls take.
   */
  readonly activeCalls: (address: Address) => number;
}

export type Balancer = (
  candidates: Candidates,
  excluded: ReadonlySet<Address>,
  context: BalanceContext,
  isFailing?: (address: Address) => boolean,
) => Candidate | undefined;

export function balancerOf(balance: Balance, random: () => number = Math.random): Balancer {
  if (balance === 'weighted') {
    return (candidates, excluded) => pickWeighted(candidates, excluded, random);
  }
  if (balance === 'least-loaded') {
    return (candidates, excluded, { activeCalls }, isFailing) =>
      leastLoaded(candidates, excluded, random, activeCalls, isFailing);
  }
  return (candidates, excluded, context) => pickBy(balance, candidates, excluded, context);
}

export function pickWeighted(
  candidates: Candidates,
  excluded: ReadonlySet<Address>,
  random: () => number,
): Candidate | undefined {
  return draw(candidates, ({ address }) => excluded.has(address), random);
}

/** Smaller differences in load are noise. */
const CLEARLY = 1.25;

/**
 * Compares two candidates picked by share. Follows Mitzenmacher, "The Power of Two Choices in
 * Randomized Load Balancing".
 *
 * The load is this process's active calls × batch time, per partition; without the batch time if
 * one of them fails, since a failure may be fast. By heartbeats' old queue lengths, all callers
 * would choose the same node.
 */
export function leastLoaded(
  candidates: Candidates,
  excluded: ReadonlySet<Address>,
  random: () => number,
  activeCalls: (address: Address) => number,
  isFailing: (address: Address) => boolean = () => false,
): Candidate | undefined {
  const one = pickWeighted(candidates, excluded, random);
  const other = draw(
    candidates,
    (candidate) => candidate === one || excluded.has(candidate.address),
    random,
  );
  if (!one || !other) {
    return one;
  }
  const isTimed = [one, other].every(
    ({ address, status }) => status.batchTime > 0 && !isFailing(address),
  );
  const load = ({ address, status }: Candidate): number =>
    ((activeCalls(address) + 1) * (isTimed ? status.batchTime : 1)) / status.partitions;
  return load(other) * CLEARLY < load(one) ? other : one;
}

function pickBy(
  choose: ChooseNode,
  candidates: Candidates,
  excluded: ReadonlySet<Address>,
  context: BalanceContext,
): Candidate | undefined {
  const { list } =
    excluded.size > 0 ? candidates.without(({ address }) => excluded.has(address)) : candidates;
  const chosen = list.length > 0 ? choose(list, context) : undefined;
  if (chosen && !list.includes(chosen)) {
    throw new InvalidServingError(
      `Serving "${context.serving}": the function in option "balance" returned ` +
        `${formatValue(chosen)}; allowed is one of its candidates`,
    );
  }
  return chosen;
}

const BLIND_DRAWS = 4;

/** Redrawing keeps the other candidates' proportions. */
function draw(
  candidates: Candidates,
  isExcluded: (candidate: Candidate) => boolean,
  random: () => number,
): Candidate | undefined {
  for (let draws = 0; draws < BLIND_DRAWS; draws++) {
    const candidate = candidates.at(random());
    if (!candidate || !isExcluded(candidate)) {
      return candidate;
    }
  }
  return candidates.without(isExcluded).at(random());
}

/** A node that takes calls to a serving. */
export interface Candidate {
  /** The node's id. */
  readonly id: string;
  /** The node's address. */
  readonly address: Address;
  /** Weight × partitions, above 0: the node's share of calls. */
  readonly share: number;
  /** Status in the last heartbeat; the next one changes it. */
  readonly status: ServingStatus;
}

/** Immutable. */
export class Candidates {
  private readonly ends: Float64Array;
  private readonly total: number;

  constructor(readonly list: readonly Candidate[]) {
    this.ends = new Float64Array(list.length);
    let total = 0;
    list.forEach(({ share }, index) => (this.ends[index] = total += share));
    this.total = total;
  }

  /** Maps a point in [0, 1) to a candidate. */
  at(point: number): Candidate | undefined {
    const { ends } = this;
    const place = point * this.total;
    let from = 0;
    // Rounding may reach the last candidate's end.
    let to = ends.length - 1;
    while (from < to) {
      const middle = (from + to) >>> 1;
      if (ends[middle]! > place) {
        to = middle;
      } else {
        from = middle + 1;
      }
    }
    return this.list[from];
  }

  without(isExcluded: (candidate: Candidate) => boolean): Candidates {
    return new Candidates(this.list.filter((candidate) => !isExcluded(candidate)));
  }
}

export interface NodeSelectorOptions {
  readonly self: Address;
  readonly members: Members;
  readonly balance: Balance;
  readonly activeCalls: (node: Address) => number;
  readonly isFailing: (node: Address) => boolean;
  readonly lookUp: () => void;
}

export class NodeSelector {
  private onlineSince: number | undefined;
  private readonly balancer: Balancer;
  private readonly changes = new Subject<void>();

  constructor(private readonly options: NodeSelectorOptions) {
    this.balancer = balancerOf(options.balance);
  }

  get isOnline(): boolean {
    return this.onlineSince !== undefined;
  }

  set isOnline(isOnline: boolean) {
    this.onlineSince = isOnline ? performance.now() : undefined;
  }

  /** Milliseconds; 0 while offline. */
  get onlineFor(): number {
    return this.onlineSince === undefined ? 0 : performance.now() - this.onlineSince;
  }

  get formerOwners(): Members['formerOwners'] {
    return this.options.members.formerOwners;
  }

  get others(): readonly NodeInfo[] {
    const { members, self } = this.options;
    return members.all.map(({ info }) => info).filter(({ address }) => address !== self);
  }

  candidates(serving: string): readonly Candidate[] {
    return this.options.members.candidates(serving).list;
  }

  pick(serving: string, excluded: ReadonlySet<Address>): Candidate | undefined {
    const { members, activeCalls, isFailing } = this.options;
    const context = { serving, activeCalls };
    return this.balancer(members.candidates(serving), excluded, context, isFailing);
  }

  async nextChange(milliseconds: number): Promise<void> {
    this.options.lookUp();
    await firstValueFrom(merge(this.changes, timer(milliseconds)));
  }

  notifyChange(): void {
    this.changes.next();
  }

  close(error: Error): void {
    this.changes.error(error);
  }
}

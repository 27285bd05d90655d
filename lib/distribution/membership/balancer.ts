import { InvalidServingError } from '../../errors.js';
import { formatValue } from '../../format.js';
import type { Address } from '../transport.js';
import type { ServingStatus } from './node-info.js';

/**
 * How the node for a call is picked: `weighted` at random, by weight × partitions; `least-loaded`
 * the better of two that are picked so, by the calls that this process has under way there and the
 * time of a batch; or a function of one's own.
 */
export type Balance = 'weighted' | 'least-loaded' | ChooseNode;

/** One of the candidates, of which there is one at least; or none, when none will do. */
export type ChooseNode = (
  candidates: readonly Candidate[],
  context: BalanceContext,
) => Candidate | undefined;

/** What is known of a call that is to be balanced. */
export interface BalanceContext {
  /** The name of the serving. */
  readonly serving: string;
  /** The calls that this process has under way at a node, of whichever serving. */
  readonly underWay: (address: Address) => number;
}

/** Picks the node for a call, but none of those that are excluded; none when nobody is left. */
export type Balancer = (
  owners: Candidates,
  excluded: ReadonlySet<Address>,
  context: BalanceContext,
) => Candidate | undefined;

export function balancerOf(balance: Balance, random: () => number = Math.random): Balancer {
  if (balance === 'weighted') {
    return (owners, excluded) => pickWeighted(owners, excluded, random);
  }
  if (balance === 'least-loaded') {
    return (owners, excluded, { underWay }) => leastLoaded(owners, excluded, random, underWay);
  }
  return (owners, excluded, context) => pickBy(balance, owners, excluded, context);
}

/**
 * At random: who has twice the share is picked twice as often, also among those that an exclusion
 * leaves.
 */
export function pickWeighted(
  owners: Candidates,
  excluded: ReadonlySet<Address>,
  random: () => number,
): Candidate | undefined {
  return draw(owners, ({ address }) => excluded.has(address), random);
}

/**
 * So many times as loaded must one be for another to be better: less is noise, by which all callers
 * would run to the same node.
 */
const CLEARLY = 1.25;

/**
 * One who is picked at random by the shares, or another one picked so who is clearly less loaded.
 * After Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing".
 *
 * The load is the calls under way from here, times the time of a batch, by partition. What others
 * have waiting there is known only as of the last beat, and so to all at once: those who went by
 * that would all take turns at the same nodes.
 */
export function leastLoaded(
  owners: Candidates,
  excluded: ReadonlySet<Address>,
  random: () => number,
  underWay: (address: Address) => number,
): Candidate | undefined {
  const one = pickWeighted(owners, excluded, random);
  const other = draw(owners, (owner) => owner === one || excluded.has(owner.address), random);
  if (!one || !other) {
    return one;
  }
  // The time of one who has run no batch says nothing: then the calls alone count.
  const isTimed = one.served.ewmaMs > 0 && other.served.ewmaMs > 0;
  const load = ({ address, served }: Candidate): number =>
    ((underWay(address) + 1) * (isTimed ? served.ewmaMs : 1)) / served.partitions;
  return load(other) * CLEARLY < load(one) ? other : one;
}

function pickBy(
  choose: ChooseNode,
  owners: Candidates,
  excluded: ReadonlySet<Address>,
  context: BalanceContext,
): Candidate | undefined {
  const { list } =
    excluded.size > 0 ? owners.without(({ address }) => excluded.has(address)) : owners;
  const chosen = list.length > 0 ? choose(list, context) : undefined;
  if (chosen && !list.includes(chosen)) {
    throw new InvalidServingError(
      `Serving "${context.serving}": the function in option "balance" returned ` +
        `${formatValue(chosen)}; allowed is one of its candidates`,
    );
  }
  return chosen;
}

/** Draws that may hit one who is excluded, before these are sorted out. */
const BLIND_DRAWS = 4;

/**
 * A draw that hits one who is excluded does not count, which leaves the chances of the others to
 * each other as they are.
 */
function draw(
  owners: Candidates,
  isExcluded: (owner: Candidate) => boolean,
  random: () => number,
): Candidate | undefined {
  for (let draws = 0; draws < BLIND_DRAWS; draws++) {
    const owner = owners.at(random());
    if (!owner || !isExcluded(owner)) {
      return owner;
    }
  }
  return owners.without(isExcluded).at(random());
}

/** A node that answers calls of a serving. */
export interface Candidate {
  /** The id of the node. */
  readonly id: string;
  readonly address: Address;
  /** Weight × partitions: twice as much is twice as many calls. Always more than 0. */
  readonly share: number;
  /** What the last beat of the node says; the next one may say something else. */
  readonly served: ServingStatus;
}

/**
 * Who may be picked for the calls of a serving. That never changes: when others may be picked,
 * there are other `Owners`.
 */
export class Candidates {
  /** Ends of the parts of all shares that are the owners', one after the other. */
  private readonly ends: Float64Array;
  private readonly total: number;

  constructor(readonly list: readonly Candidate[]) {
    this.ends = new Float64Array(list.length);
    let total = 0;
    list.forEach(({ share }, index) => (this.ends[index] = total += share));
    this.total = total;
  }

  /** The one in whose part of all shares the point lies, which is from 0 up to 1. */
  at(point: number): Candidate | undefined {
    const { ends } = this;
    const place = point * this.total;
    let from = 0;
    // Rounding may bring the place to the very end, which is the last one's.
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

  without(isExcluded: (owner: Candidate) => boolean): Candidates {
    return new Candidates(this.list.filter((owner) => !isExcluded(owner)));
  }
}

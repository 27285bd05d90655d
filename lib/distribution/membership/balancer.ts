import { firstValueFrom, merge, Subject, timer } from 'rxjs';
import { InvalidServingError } from '../../errors.js';
import { formatValue } from '../../format.js';
import type { Address } from '../transport.js';
import type { ServingStatus } from '../../serving/cluster-node.js';
import type { NodeInfo } from './node-info.js';
import type { Members } from './members.js';

/**
 * How the node for a call is picked. `weighted`: at random, by weight × partitions. `least-loaded`:
 * the better of two such picks, by the active calls of this process and the time of a batch. Or a
 * function.
 */
export type Balance = 'weighted' | 'least-loaded' | ChooseNode;

/** Returns one of the candidates, at least one of which is given, or undefined for none. */
export type ChooseNode = (
  candidates: readonly Candidate[],
  context: BalanceContext,
) => Candidate | undefined;

/** The call that a node is picked for. */
export interface BalanceContext {
  /** The name of the serving. */
  readonly serving: string;
  /** The calls of this process to a node that have no answer yet, of all servings. */
  readonly activeCalls: (address: Address) => number;
}

/** Picks the node for a call, except excluded ones, or undefined when no other is left. */
export type Balancer = (
  candidates: Candidates,
  excluded: ReadonlySet<Address>,
  context: BalanceContext,
) => Candidate | undefined;

export function balancerOf(balance: Balance, random: () => number = Math.random): Balancer {
  if (balance === 'weighted') {
    return (candidates, excluded) => pickWeighted(candidates, excluded, random);
  }
  if (balance === 'least-loaded') {
    return (candidates, excluded, { activeCalls }) =>
      leastLoaded(candidates, excluded, random, activeCalls);
  }
  return (candidates, excluded, context) => pickBy(balance, candidates, excluded, context);
}

/** Picks at random, in proportion to the shares of the candidates that are not excluded. */
export function pickWeighted(
  candidates: Candidates,
  excluded: ReadonlySet<Address>,
  random: () => number,
): Candidate | undefined {
  return draw(candidates, ({ address }) => excluded.has(address), random);
}

/** The factor by which a load must differ; smaller differences are noise. */
const CLEARLY = 1.25;

/**
 * Picks two candidates at random by their shares, and returns the second if its load is clearly
 * lower. After Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing".
 *
 * The load is this process's active calls × the time of a batch, per partition. The queues in the
 * heartbeats are no measure: all callers see the same old number and would turn to the same node.
 */
export function leastLoaded(
  candidates: Candidates,
  excluded: ReadonlySet<Address>,
  random: () => number,
  activeCalls: (address: Address) => number,
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
  // Without a batch time of both, only the calls count.
  const isTimed = one.status.batchTime > 0 && other.status.batchTime > 0;
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

/** Draws that may hit an excluded candidate before these are filtered out. */
const BLIND_DRAWS = 4;

/** Repeats a draw that hits an excluded candidate, which keeps the proportions of the others. */
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

/** A node that answers calls of a serving. */
export interface Candidate {
  /** The id of the node. */
  readonly id: string;
  /** The address of the node. */
  readonly address: Address;
  /** Weight × partitions: in proportion to it the node gets calls. Always more than 0. */
  readonly share: number;
  /** The status in the node's last heartbeat; it changes with the next one. */
  readonly status: ServingStatus;
}

/** The candidates for the calls of a serving; immutable. */
export class Candidates {
  /** Cumulative shares. */
  private readonly ends: Float64Array;
  private readonly total: number;

  constructor(readonly list: readonly Candidate[]) {
    this.ends = new Float64Array(list.length);
    let total = 0;
    list.forEach(({ share }, index) => (this.ends[index] = total += share));
    this.total = total;
  }

  /** The candidate at a point from 0 up to 1 of all shares, one after the other. */
  at(point: number): Candidate | undefined {
    const { ends } = this;
    const place = point * this.total;
    let from = 0;
    // Rounding may bring the place to the very end, which belongs to the last one.
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
  /** The address of this node. */
  readonly self: Address;
  readonly members: Members;
  readonly balance: Balance;
  /** The calls of this process to a node that have no answer yet. */
  readonly activeCalls: (node: Address) => number;
}

/** Selects the node for each call. */
export class NodeSelector {
  private onlineSince: number | undefined;
  private readonly balancer: Balancer;
  private readonly changes = new Subject<void>();

  constructor(private readonly options: NodeSelectorOptions) {
    this.balancer = balancerOf(options.balance);
  }

  /** Whether the transport reaches other nodes. */
  get isOnline(): boolean {
    return this.onlineSince !== undefined;
  }

  set isOnline(isOnline: boolean) {
    this.onlineSince = isOnline ? performance.now() : undefined;
  }

  /** The milliseconds for which it has reached them. */
  get onlineFor(): number {
    return this.onlineSince === undefined ? 0 : performance.now() - this.onlineSince;
  }

  /** Whether any node has, or has had, the serving. */
  hasKnown(serving: string): boolean {
    return this.options.members.hasKnown(serving);
  }

  /** The known nodes except this one. */
  get others(): readonly NodeInfo[] {
    const { members, self } = this.options;
    return members.all.map(({ info }) => info).filter(({ address }) => address !== self);
  }

  /** The nodes that take calls of the serving. */
  candidates(serving: string): readonly Candidate[] {
    return this.options.members.candidates(serving).list;
  }

  /** The node for a call, or undefined when every candidate is excluded. */
  pick(serving: string, excluded: ReadonlySet<Address>): Candidate | undefined {
    const { members, activeCalls } = this.options;
    return this.balancer(members.candidates(serving), excluded, { serving, activeCalls });
  }

  /** Resolves when the candidates have changed, and after so many milliseconds at the latest. */
  async nextChange(milliseconds: number): Promise<void> {
    await firstValueFrom(merge(this.changes, timer(milliseconds)));
  }

  notifyChange(): void {
    this.changes.next();
  }

  /** Rejects every `nextChange` with the error, from now on. */
  close(error: Error): void {
    this.changes.error(error);
  }
}

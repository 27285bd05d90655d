import { isA, NodeLostError, ServingUnavailableError, UnknownServingError } from '../../errors.js';
import { type ResolvedCallOptions, orCancelled } from '../../execution/resolved-call-options.js';
import { truncate, formatValue } from '../../format.js';
import { AttemptError } from './attempt-error.js';
import type { NodeInfo } from '../membership/node-info.js';
import type { Candidate } from '../membership/balancer.js';
import type { Address } from '../transport.js';

/** Where calls can go, as far as their tries must know. */
export interface Routes {
  /** The node for a call, if there is one that is not excluded. */
  pick(serving: string, excluded: ReadonlySet<Address>): Candidate | undefined;
  /** The nodes that could be picked. */
  owners(serving: string): readonly Candidate[];
  /** The other nodes that are known. */
  readonly others: readonly NodeInfo[];
  /**
   * Resolves when other nodes can be picked than before, and after so many milliseconds at the
   * latest.
   */
  change(milliseconds: number): Promise<void>;
  /** Whether anybody can be reached at all. */
  readonly isOnline: boolean;
}

export interface FailoverOptions {
  /** Milliseconds that a call waits for a node that has its serving. */
  readonly discoveryTimeout: number;
  /** How often rows may run at most. */
  readonly attempts: number;
  readonly namespace: string;
  /** The names of the servings that other nodes are said to have. */
  readonly remotes: ReadonlyMap<string, unknown>;
}

/** While nobody can be reached, a call looks again so often, in milliseconds. */
const LOOK_AGAIN = 1000;

/**
 * One call on its way to a node that answers it: which node is next, and when there is nothing left
 * to try.
 */
export class Failover {
  private readonly excluded = new Set<Address>();
  /** Those of them that are excluded for not being there, which may change. */
  private readonly gone = new Set<Address>();
  private runs = 0;
  private last: AttemptError | undefined;
  private hasDelivered = false;

  constructor(
    private readonly serving: string,
    private readonly terms: ResolvedCallOptions,
    private readonly routes: Routes,
    private readonly options: FailoverOptions,
  ) {}

  /**
   * The next node to ask.
   *
   * @throws UnknownServingError when no node has the serving, and none that has it comes in time;
   * ServingUnavailableError when it is known that there are such nodes; what the last node said, if
   * one was asked
   */
  async next(): Promise<Candidate> {
    const { serving, terms, routes, excluded } = this;
    let left = this.options.discoveryTimeout;
    for (;;) {
      terms.signal?.throwIfAborted();
      const owner = routes.isOnline ? routes.pick(serving, excluded) : undefined;
      if (owner) {
        return owner;
      }
      if (left <= 0 || this.allHaveRefused()) {
        throw this.last?.error ?? this.nobody();
      }
      const before = performance.now();
      const { isOnline } = routes;
      await orCancelled(terms, routes.change(isOnline ? left : LOOK_AGAIN));
      this.gone.forEach((address) => excluded.delete(address));
      this.gone.clear();
      // While it can reach nobody, a call waits for as long as its caller does.
      left -= isOnline ? performance.now() - before : 0;
    }
  }

  /**
   * The node did not answer the call.
   *
   * @throws the reason, where it would be wrong to ask another
   */
  failed(owner: Candidate, error: unknown): void {
    if (!isA(error, AttemptError)) {
      throw error;
    }
    this.last = error;
    this.excluded.add(owner.address);
    if (error.isUnreachable) {
      this.gone.add(owner.address);
    }
    if (
      error.mayHaveRun === 'yes' ||
      (error.mayHaveRun === 'unknown' && !this.mayRunAgain(owner))
    ) {
      throw error.error;
    }
  }

  /** Its caller has had a part of the answer, which no other node can go on with. */
  delivered(): void {
    this.hasDelivered = true;
  }

  /** Where the node may have run the rows. */
  private mayRunAgain({ served }: Candidate): boolean {
    return served.idempotent && !this.hasDelivered && ++this.runs < this.options.attempts;
  }

  /** Those that could be asked have been, and say no; there is nothing to wait for. */
  private allHaveRefused(): boolean {
    const owners = this.routes.owners(this.serving);
    return (
      this.last !== undefined &&
      !this.last.isUnreachable &&
      owners.length > 0 &&
      owners.every(({ address }) => this.excluded.has(address))
    );
  }

  private nobody(): Error {
    const { serving } = this;
    const { isOnline, others } = this.routes;
    if (!isOnline) {
      return new NodeLostError(
        `The call to serving ${formatValue(serving)} could not be sent: the transport is away`,
      );
    }
    const isKnown = this.options.remotes.has(serving) || ownersAmong(others, serving).length > 0;
    const what = isKnown ? ServingUnavailableError : UnknownServingError;
    return new what(
      `There is no serving ${formatValue(serving)} here, and ${this.whereElse(others)}`,
    );
  }

  /** Why none of the other nodes was asked, in words. */
  private whereElse(others: readonly NodeInfo[]): string {
    const nodes = others.filter(({ role }) => role === 'node');
    if (nodes.length === 0) {
      return `namespace ${formatValue(this.options.namespace)} has no node that could have it`;
    }
    const having = ownersAmong(nodes, this.serving);
    if (having.length > 0) {
      return `no node that has it takes calls now: ${list(having.map(({ id }) => id))}`;
    }
    const names = new Set(nodes.flatMap(({ servings }) => servings.map(({ name }) => name)));
    return (
      `no node that is known has it: ${list(nodes.map(({ id }) => id))}. They have ` +
      (list([...names]) || 'no serving')
    );
  }
}

function ownersAmong(nodes: readonly NodeInfo[], serving: string): readonly NodeInfo[] {
  return nodes.filter(({ servings }) => servings.some(({ name }) => name === serving));
}

function list(names: readonly string[]): string {
  return truncate(names.map((name) => formatValue(name)).join(', '));
}

/** The routes to all nodes but one. */
export class RoutesWithoutSelf implements Routes {
  constructor(
    private readonly routes: Routes,
    private readonly self: Address,
  ) {}

  get isOnline(): boolean {
    return this.routes.isOnline;
  }

  get others(): Routes['others'] {
    return this.routes.others;
  }

  pick(serving: string, excluded: ReadonlySet<Address>): Candidate | undefined {
    return this.routes.pick(serving, new Set(excluded).add(this.self));
  }

  owners(serving: string): readonly Candidate[] {
    return this.routes.owners(serving).filter(({ address }) => address !== this.self);
  }

  change(milliseconds: number): Promise<void> {
    return this.routes.change(milliseconds);
  }
}

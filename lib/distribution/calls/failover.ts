import { isA, NodeLostError, ServingUnavailableError, UnknownServingError } from '../../errors.js';
import { type ResolvedCallOptions, orCancelled } from '../../execution/resolved-call-options.js';
import { truncate, formatValue } from '../../format.js';
import { AttemptError } from './attempt-error.js';
import type { NodeInfo } from '../membership/node-info.js';
import type { NodeSelector, Candidate } from '../membership/balancer.js';
import type { Address } from '../transport.js';

export interface FailoverOptions {
  readonly selector: NodeSelector;
  /** Milliseconds that a call waits for a node that has its serving. */
  readonly discoveryTimeout: number;
  /** The most nodes that may run the rows of one call. */
  readonly attempts: number;
  readonly namespace: string;
  /** The servings that other nodes are configured to have, by name. */
  readonly remotes: ReadonlyMap<string, unknown>;
}

/** Milliseconds between two looks for a node while the transport is offline. */
const OFFLINE_INTERVAL = 1000;

/** Chooses the next node for one call, until a node answers it or no node is left. */
export class Failover {
  private readonly excluded = new Set<Address>();
  /** The excluded nodes that were unreachable; they are tried again when members change. */
  private readonly unreachable = new Set<Address>();
  private runs = 0;
  private lastError: AttemptError | undefined;
  private hasDelivered = false;

  constructor(
    private readonly serving: string,
    private readonly terms: ResolvedCallOptions,
    private readonly options: FailoverOptions,
    /** A node that must not get the call: this one, when its own queue is too long. */
    private readonly avoided?: Address,
  ) {
    if (avoided !== undefined) {
      this.excluded.add(avoided);
    }
  }

  /**
   * The next node for the call, if one takes it now.
   *
   * @throws the reason of a call that is cancelled
   */
  pick(): Candidate | undefined {
    const { serving, terms, excluded, options } = this;
    const { selector } = options;
    terms.signal?.throwIfAborted();
    return selector.isOnline ? selector.pick(serving, excluded) : undefined;
  }

  /**
   * The next node for the call. A name that no node has had fails at once where the nodes had
   * `discoveryTimeout` to be found.
   *
   * @throws the error of the last attempt, if there was one; UnknownServingError for a serving that
   * no node has had; ServingUnavailableError when none that has it takes calls within
   * `discoveryTimeout`
   */
  async next(): Promise<Candidate> {
    const { terms, excluded, unreachable } = this;
    const { selector, discoveryTimeout } = this.options;
    let left = this.isKnown() ? discoveryTimeout : discoveryTimeout - selector.onlineFor;
    for (;;) {
      const candidate = this.pick();
      if (candidate) {
        return candidate;
      }
      if (left <= 0 || this.allHaveRefused()) {
        throw this.lastError?.error ?? this.noCandidate();
      }
      const before = performance.now();
      const { isOnline } = selector;
      await orCancelled(terms, selector.nextChange(isOnline ? left : OFFLINE_INTERVAL));
      unreachable.forEach((address) => excluded.delete(address));
      unreachable.clear();
      // Only the call's own deadline limits the wait for a transport that is offline.
      left -= isOnline ? performance.now() - before : 0;
    }
  }

  /**
   * Excludes the node after a failed attempt.
   *
   * @throws the error, when no other node may run the call
   */
  failed(candidate: Candidate, error: unknown): void {
    if (!isA(error, AttemptError)) {
      throw error;
    }
    this.lastError = error;
    this.excluded.add(candidate.address);
    if (error.isUnreachable) {
      this.unreachable.add(candidate.address);
    }
    if (
      error.mayHaveRun === 'yes' ||
      (error.mayHaveRun === 'unknown' && !this.mayRunAgain(candidate))
    ) {
      throw error.error;
    }
  }

  /** The caller has received a part of the stream, which no other node can continue. */
  delivered(): void {
    this.hasDelivered = true;
  }

  private mayRunAgain({ status }: Candidate): boolean {
    return status.idempotent && !this.hasDelivered && ++this.runs < this.options.attempts;
  }

  /** Whether every candidate has refused the call, so that waiting is useless. */
  private allHaveRefused(): boolean {
    const { lastError, excluded, avoided, options, serving } = this;
    const addresses = options.selector.candidates(serving).map(({ address }) => address);
    const others = addresses.filter((address) => address !== avoided);
    return (
      lastError !== undefined &&
      !lastError.isUnreachable &&
      others.length > 0 &&
      others.every((address) => excluded.has(address))
    );
  }

  /** Whether a node has, has had, or should have the serving. */
  private isKnown(): boolean {
    const { remotes, selector } = this.options;
    return remotes.has(this.serving) || selector.hasKnown(this.serving);
  }

  private noCandidate(): Error {
    const { serving } = this;
    const { isOnline, others } = this.options.selector;
    if (!isOnline) {
      return new NodeLostError(
        `The call to serving ${formatValue(serving)} could not be sent: the transport is offline`,
      );
    }
    const ErrorClass = this.isKnown() ? ServingUnavailableError : UnknownServingError;
    return new ErrorClass(
      `There is no serving ${formatValue(serving)} here, and ${this.stateOf(others)}`,
    );
  }

  /** The reason why no other node got the call, in words. */
  private stateOf(others: readonly NodeInfo[]): string {
    const nodes = others.filter(({ role }) => role === 'node');
    if (nodes.length === 0) {
      return `namespace ${formatValue(this.options.namespace)} has no node that could have it`;
    }
    const owners = nodesWith(this.serving, nodes);
    if (owners.length > 0) {
      return `no node that has it takes calls now: ${list(owners.map(({ id }) => id))}`;
    }
    const names = new Set(nodes.flatMap(({ servings }) => servings.map(({ name }) => name)));
    return (
      `no known node has it: ${list(nodes.map(({ id }) => id))}. They have ` +
      (list([...names]) || 'no serving')
    );
  }
}

function nodesWith(serving: string, nodes: readonly NodeInfo[]): readonly NodeInfo[] {
  return nodes.filter(({ servings }) => servings.some(({ name }) => name === serving));
}

function list(names: readonly string[]): string {
  return truncate(names.map((name) => formatValue(name)).join(', '));
}

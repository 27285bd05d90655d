import { NodeLostError, ServingUnavailableError, UnknownServingError } from '../../../index.js';
import { type ResolvedCallOptions, orCancelled } from '../../../doors/calls.js';
import { isA, truncate, formatValue } from '../../../doors/text.js';
import { AttemptError } from './attempt-error.js';
import type { NodeInfo } from '../membership/node-info.js';
import type { NodeSelector, Candidate } from '../membership/balancer.js';
import type { Address } from '../transport.js';

export interface FailoverOptions {
  readonly selector: NodeSelector;
  /** Milliseconds. */
  readonly discoveryTimeout: number;
  /** Most nodes that may run one call's rows. */
  readonly attempts: number;
  readonly namespace: string;
  readonly remotes: ReadonlyMap<string, unknown>;
}

/** Milliseconds. */
const OFFLINE_INTERVAL = 1000;

export class Failover {
  private readonly excluded = new Set<Address>();
  private readonly unreachable = new Set<Address>();
  private runs = 0;
  private lastError: AttemptError | undefined;

  constructor(
    private readonly serving: string,
    private readonly terms: ResolvedCallOptions,
    private readonly options: FailoverOptions,
    /** This node, if saturated. */
    private readonly avoided?: Address,
  ) {
    if (avoided !== undefined) {
      this.excluded.add(avoided);
    }
  }

  /** @throws the reason of a cancelled call */
  pick(): Candidate | undefined {
    const { serving, terms, excluded, options } = this;
    const { selector } = options;
    terms.signal?.throwIfAborted();
    return selector.isOnline ? selector.pick(serving, excluded) : undefined;
  }

  /**
   * Waits for a node; for an unknown serving, only until the transport has been online for
   * `discoveryTimeout`.
   *
   * @throws the last attempt's error, if any
   * @throws UnknownServingError if no node has had the serving
   * @throws ServingUnavailableError if no node takes calls
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
      // Only the call's deadline limits the wait offline.
      left -= isOnline ? performance.now() - before : 0;
    }
  }

  /** @throws the error, if no other node may run the call */
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

  private mayRunAgain({ status }: Candidate): boolean {
    return status.idempotent && ++this.runs < this.options.attempts;
  }

  /** Waiting is useless then. */
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

  private isKnown(): boolean {
    const { remotes, selector } = this.options;
    return remotes.has(this.serving) || selector.formerOwners.has(this.serving);
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

  private stateOf(others: readonly NodeInfo[]): string {
    const { serving } = this;
    const { namespace, selector } = this.options;
    const nodes = others.filter(({ role }) => role === 'node');
    const owners = nodesWith(serving, nodes);
    if (owners.length > 0) {
      return `no node that has it takes calls now: ${list(owners.map(({ id }) => id))}`;
    }
    const last = selector.formerOwners.get(serving);
    if (last && !nodes.some(({ id }) => id === last.id)) {
      const end = last.hasLeft ? 'has left' : 'is lost';
      const seconds = Math.round((performance.now() - last.lastSeenAt) / 1000);
      return (
        `the node ${formatValue(last.id)}, which had it, ${end} (last seen ${seconds} s ago), ` +
        'and no other has it'
      );
    }
    if (nodes.length === 0) {
      return `namespace ${formatValue(namespace)} has no node that could have it`;
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

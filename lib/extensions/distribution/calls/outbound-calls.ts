import { type CallState, CallTable, encodeStates, statesIn } from './call-table.js';
import { OverloadedError } from '../../../index.js';
import { Waits } from '../../../doors/calls.js';
import { Attempt, type Outcome, type RemoteRequest } from './attempt.js';
import type { Message, MessageHead, Messenger } from '../wire/messenger.js';
import type { Address } from '../transport.js';
import { type FrameError, Kind } from '../wire/prelude.js';
import type { FlowControlOptions } from './flow-control.js';

export class OutboundCalls {
  private readonly attempts = new CallTable<Attempt>();
  /** Attempts; may be 0. */
  private readonly counts = new Map<Address, number>();
  private readonly failures = new Failures();
  readonly preparing = new Waits();
  private lastId = 0;
  private calls = 0;
  private notifyIdle: (() => void) | undefined;
  private closed: Error | undefined;

  constructor(
    private readonly messenger: Messenger,
    private readonly window: FlowControlOptions,
    private readonly maxCalls: number,
  ) {}

  get nodes(): readonly Address[] {
    return [...this.counts].filter(([, count]) => count > 0).map(([node]) => node);
  }

  get size(): number {
    return this.attempts.size;
  }

  countOf(node: Address): number {
    return this.counts.get(node) ?? 0;
  }

  /** True if the last call failed: the batch time may come from failures. */
  isFailing(node: Address): boolean {
    return this.failures.isFailing(node);
  }

  /** Unanswered calls, and failed ones for as long as an answer would have taken. */
  loadOf(node: Address): number {
    return this.countOf(node) + this.failures.countOf(node);
  }

  /**
   * Counts a call until the returned function is called.
   *
   * @throws the error of {@link close}
   */
  enter(): () => void {
    if (this.closed) {
      throw this.closed;
    }
    this.calls++;
    return () => {
      if (--this.calls === 0) {
        this.notifyIdle?.();
      }
    };
  }

  async idle(): Promise<void> {
    if (this.calls > 0) {
      await new Promise<void>((resolve) => (this.notifyIdle = resolve));
    }
  }

  close(error: Error): void {
    this.closed ??= error;
    this.preparing.end(error);
    this.attempts.all().forEach((attempt) => attempt.fail(error));
  }

  /**
   * @throws OverloadedError at the limit of calls
   * @throws the error of {@link close}
   */
  begin(node: Address, request: RemoteRequest): Attempt {
    if (this.closed) {
      throw this.closed;
    }
    if (this.attempts.size >= this.maxCalls) {
      throw new OverloadedError(
        `${this.maxCalls} calls to other nodes have no answer yet, and "limits.calls" of ` +
          'ServingClusterModule allows no more',
        { retryAfter: 1 },
      );
    }
    this.lastId = this.attempts.nextAfter(this.lastId);
    const attempt = new Attempt(
      this.lastId,
      this.messenger,
      node,
      request,
      this.window,
      this.ended,
    );
    this.attempts.add(attempt);
    this.counts.set(node, this.countOf(node) + 1);
    return attempt;
  }

  check(self: Address): void {
    const byNode = new Map<Address, CallState[]>();
    for (const attempt of this.attempts.all()) {
      const state = attempt.node === self ? undefined : attempt.state();
      if (state) {
        const states = byNode.get(attempt.node) ?? [];
        states.push(state);
        byNode.set(attempt.node, states);
      }
    }
    for (const [node, states] of byNode) {
      void this.messenger.trySend(node, { kind: Kind.check, value: encodeStates(states) });
    }
  }

  receive(message: Message): void {
    if (message.kind === Kind.status) {
      this.compare(message);
    } else {
      this.attemptOf(message)?.receive(message);
    }
  }

  refuse(message: MessageHead, error: FrameError): void {
    this.attemptOf(message)?.refuse(error);
  }

  lose(node: Address, mayHaveRun: 'no' | 'unknown'): void {
    for (const attempt of this.attempts.all()) {
      if (attempt.node === node) {
        attempt.lose(mayHaveRun);
      }
    }
    this.failures.drop(node);
    if (this.countOf(node) === 0) {
      this.counts.delete(node);
    }
  }

  private compare(message: Message): void {
    const { from } = message;
    for (const state of statesIn(message.value())) {
      const [call, sent] = state;
      const attempt = this.attemptOf({ from, call });
      if (attempt) {
        attempt.compare(state);
      } else if (sent >= 0) {
        // The node missed that the call ended.
        void this.messenger.trySend(from, { kind: Kind.cancel, call });
      }
    }
  }

  /** Only the called node may answer. */
  private attemptOf({ from, call }: Pick<MessageHead, 'from' | 'call'>): Attempt | undefined {
    const attempt = this.attempts.get(call);
    return attempt?.node === from ? attempt : undefined;
  }

  private readonly ended = (attempt: Attempt, outcome: Outcome): void => {
    const { node } = attempt;
    this.attempts.remove(attempt);
    this.counts.set(node, this.countOf(node) - 1);
    this.failures.ended(attempt, outcome);
  };
}

/** Newest answer's weight in the moving average. */
const NEWEST = 0.1;

const MOST_FAILED = 1000;

/** Counts failed calls as active for a while: a node that fails fast would look idle. */
class Failures {
  /** Times when they would have been answered, by node. */
  private readonly due = new Map<Address, number[]>();
  private readonly failing = new Set<Address>();
  /** Moving averages of answered calls in milliseconds, by serving. */
  private readonly times = new Map<string, number>();

  countOf(node: Address): number {
    const due = this.due.get(node);
    if (!due) {
      return 0;
    }
    const now = performance.now();
    while (due[0] !== undefined && due[0] <= now) {
      due.shift();
    }
    return due.length;
  }

  isFailing(node: Address): boolean {
    return this.failing.has(node);
  }

  drop(node: Address): void {
    this.failing.delete(node);
    this.due.delete(node);
  }

  ended({ node, serving, startedAt }: Attempt, outcome: Outcome): void {
    const time = performance.now() - startedAt;
    const average = this.times.get(serving);
    if (outcome === 'answered') {
      this.failing.delete(node);
      this.times.set(serving, average === undefined ? time : average + NEWEST * (time - average));
    } else if (outcome === 'failed') {
      this.failing.add(node);
      const due = this.due.get(node) ?? [];
      if (average !== undefined && time < average && due.length < MOST_FAILED) {
        due.push(startedAt + average);
        this.due.set(node, due);
      }
    }
  }
}

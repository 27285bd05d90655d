import { type CallState, CallTable, encodeStates, statesIn } from './call-table.js';
import { OverloadedError } from '../../../index.js';
import { Waits } from '../../../internal.js';
import { Attempt, type RemoteRequest } from './attempt.js';
import type { Message, MessageHead, Messenger } from '../wire/messenger.js';
import type { Address } from '../transport.js';
import { type FrameError, Kind } from '../wire/prelude.js';
import type { FlowControlOptions } from './flow-control.js';

export class OutboundCalls {
  private readonly attempts = new CallTable<Attempt>();
  /** Attempts per node; may be 0. */
  private readonly counts = new Map<Address, number>();
  /** Preprocessing of unsent calls. */
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

  /** Fails all calls, also later ones. */
  close(error: Error): void {
    this.closed ??= error;
    this.preparing.end(error);
    this.attempts.all().forEach((attempt) => attempt.fail(error));
  }

  /**
   * Creates an unsent attempt.
   *
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

  /** Checks long-running calls. */
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

  private readonly ended = (attempt: Attempt): void => {
    const { node } = attempt;
    this.attempts.remove(attempt);
    this.counts.set(node, this.countOf(node) - 1);
  };
}

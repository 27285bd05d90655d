import { OverloadedError } from '../../errors.js';
import { Attempt, type RemoteRequest } from './attempt.js';
import { wholeIn } from '../wire/record-reader.js';
import type { Message, Messenger } from '../wire/messenger.js';
import type { Address } from '../transport.js';
import type { FrameError } from '../wire/prelude.js';
import { UntilClosed } from '../until-closed.js';
import type { FlowControlOptions } from './flow-control.js';

/** The calls to other nodes that are under way. */
export class OutboundCalls {
  private readonly attempts = new Map<number, Attempt>();
  private readonly byNode = new Map<Address, Set<Attempt>>();
  /** What calls wait for before they are sent. */
  readonly preparing = new UntilClosed();
  private last = 0;
  private calls = 0;
  private idleNow: (() => void) | undefined;
  private closed: Error | undefined;

  constructor(
    private readonly post: Messenger,
    private readonly window: FlowControlOptions,
    private readonly most: number,
  ) {}

  /** The nodes that have calls. */
  get nodes(): Iterable<Address> {
    return this.byNode.keys();
  }

  get size(): number {
    return this.attempts.size;
  }

  underWay(node: Address): number {
    return this.byNode.get(node)?.size ?? 0;
  }

  /**
   * Counts a call, on its way to whichever nodes, until it says that it is over.
   *
   * @throws what {@link close} was given, once that is so
   */
  enter(): () => void {
    if (this.closed) {
      throw this.closed;
    }
    this.calls++;
    return () => {
      if (--this.calls === 0) {
        this.idleNow?.();
      }
    };
  }

  /** Resolves when there are no calls. */
  async idle(): Promise<void> {
    if (this.calls > 0) {
      await new Promise<void>((resolve) => (this.idleNow = resolve));
    }
  }

  /** Takes no more calls, and fails those that there are. */
  close(error: Error): void {
    this.closed ??= error;
    this.preparing.close(error);
    this.attempts.forEach((attempt) => attempt.fail(error));
  }

  /**
   * A call to the node that is not sent yet.
   *
   * @throws OverloadedError when too many are under way
   * @throws what {@link close} was given, once that is so
   */
  begin(node: Address, question: RemoteRequest): Attempt {
    if (this.closed) {
      throw this.closed;
    }
    if (this.attempts.size >= this.most) {
      throw new OverloadedError(
        `${this.most} calls to other nodes are under way, and "limits.calls" of the option ` +
          '"distribution" allows no more',
        { retryAfter: 1 },
      );
    }
    const id = ++this.last;
    const attempt = new Attempt(id, this.post, node, question, this.window, (over) =>
      this.end(id, over),
    );
    this.attempts.set(id, attempt);
    const ofNode = this.byNode.get(node) ?? new Set();
    this.byNode.set(node, ofNode.add(attempt));
    return attempt;
  }

  /** Answers to calls that are over are nobody's any more. */
  hear(letter: Message): void {
    this.answeredBy(letter)?.hear(letter);
  }

  /** An answer has come that cannot be taken. */
  refuse(letter: Pick<Message, 'from' | 'header'>, error: FrameError): void {
    this.answeredBy(letter)?.refuse(error);
  }

  /** The node has gone; `mayHaveRun`: whether it may have run what it has not answered. */
  lose(node: Address, mayHaveRun: 'no' | 'unknown'): void {
    this.byNode.get(node)?.forEach((attempt) => attempt.lose(mayHaveRun));
  }

  /** Nobody answers for somebody else. */
  private answeredBy({ from, header }: Pick<Message, 'from' | 'header'>): Attempt | undefined {
    const attempt = this.attempts.get(wholeIn(header, 'call'));
    return attempt?.node === from ? attempt : undefined;
  }

  private end(id: number, attempt: Attempt): void {
    this.attempts.delete(id);
    const ofNode = this.byNode.get(attempt.node);
    ofNode?.delete(attempt);
    if (ofNode?.size === 0) {
      this.byNode.delete(attempt.node);
    }
  }
}

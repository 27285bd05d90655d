import { OverloadedError } from '../../errors.js';
import { Attempt, type RemoteRequest } from './attempt.js';
import { wholeIn } from '../wire/record-reader.js';
import type { Message, Messenger } from '../wire/messenger.js';
import type { Address } from '../transport.js';
import type { FrameError } from '../wire/prelude.js';
import { Waits } from '../../execution/resolved-call-options.js';
import type { FlowControlOptions } from './flow-control.js';

/** The calls to other nodes that have no answer yet. */
export class OutboundCalls {
  private readonly attempts = new Map<number, Attempt>();
  private readonly byNode = new Map<Address, Set<Attempt>>();
  /** The preprocessing of calls that are not sent yet. */
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

  /** The nodes that have not answered a call yet. */
  get nodes(): Iterable<Address> {
    return this.byNode.keys();
  }

  get size(): number {
    return this.attempts.size;
  }

  countOf(node: Address): number {
    return this.byNode.get(node)?.size ?? 0;
  }

  /**
   * Counts a call, with all its attempts, until the returned function is called.
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

  /** Resolves when every call is answered. */
  async idle(): Promise<void> {
    if (this.calls > 0) {
      await new Promise<void>((resolve) => (this.notifyIdle = resolve));
    }
  }

  /** Refuses new calls, and fails the others with the error. */
  close(error: Error): void {
    this.closed ??= error;
    this.preparing.end(error);
    this.attempts.forEach((attempt) => attempt.fail(error));
  }

  /**
   * An attempt to call the node, not sent yet.
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
    const id = ++this.lastId;
    const attempt = new Attempt(id, this.messenger, node, request, this.window, (over) =>
      this.end(id, over),
    );
    this.attempts.set(id, attempt);
    const ofNode = this.byNode.get(node) ?? new Set();
    this.byNode.set(node, ofNode.add(attempt));
    return attempt;
  }

  /** Passes an answer on; that of a call that is over is ignored. */
  receive(message: Message): void {
    this.attemptOf(message)?.receive(message);
  }

  /** Fails the call of an answer that cannot be read. */
  refuse(message: Pick<Message, 'from' | 'header'>, error: FrameError): void {
    this.attemptOf(message)?.refuse(error);
  }

  /** The node is lost; `mayHaveRun`: whether it may have run the calls without an answer. */
  lose(node: Address, mayHaveRun: 'no' | 'unknown'): void {
    this.byNode.get(node)?.forEach((attempt) => attempt.lose(mayHaveRun));
  }

  /** Only the node of a call may answer it. */
  private attemptOf({ from, header }: Pick<Message, 'from' | 'header'>): Attempt | undefined {
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

import { type Header, wholeIn } from '../wire/header.js';
import { Queue } from '../../../doors/calls.js';
import { FrameError } from '../wire/prelude.js';

/** Limits a stream's unacknowledged part. */
export interface FlowControlOptions {
  /**
   * Maximum messages in flight.
   *
   * @default 64
   */
  readonly messages: number;
  /**
   * Maximum bytes in flight; a single message may exceed it.
   *
   * @default 1048576
   */
  readonly bytes: number;
}

/**
 * The receiver's grant, capped by our own window.
 *
 * @throws FrameError
 */
export function grantedWindow(header: Header, own: FlowControlOptions): FlowControlOptions {
  const { window } = header;
  if (window === undefined) {
    return own;
  }
  const grant: Header = Object(window);
  return {
    messages: Math.min(own.messages, wholeIn(grant, 'messages')),
    bytes: Math.min(own.bytes, wholeIn(grant, 'bytes')),
  };
}

export function isFull(messages: number, bytes: number, window: FlowControlOptions): boolean {
  return messages >= window.messages || (messages > 0 && bytes >= window.bytes);
}

export class SendWindow {
  /** Bytes, oldest first. */
  private readonly inFlight: number[] = [];
  private bytes = 0;
  private taken = 0;
  private credited = 0;
  private isClosed = false;
  private wake = (): void => {};

  constructor(private readonly limits: FlowControlOptions) {}

  get sent(): number {
    return this.taken + this.inFlight.length;
  }

  /** Resolves with false after {@link close}. */
  async room(): Promise<boolean> {
    while (!this.isClosed && isFull(this.inFlight.length, this.bytes, this.limits)) {
      await new Promise<void>((resolve) => (this.wake = resolve));
    }
    return !this.isClosed;
  }

  add(bytes: number): void {
    this.inFlight.push(bytes);
    this.bytes += bytes;
    this.release();
  }

  /** @param count total */
  acknowledge(count: number): void {
    // A message's credit can precede `add`.
    this.credited = Math.min(count, this.sent + 1);
    this.release();
    this.wake();
  }

  close(): void {
    this.isClosed = true;
    this.wake();
  }

  private release(): void {
    while (this.taken < this.credited && this.inFlight.length > 0) {
      this.taken++;
      this.bytes -= this.inFlight.shift()!;
    }
  }
}

const ACKNOWLEDGE_AFTER = { messages: 16, bytes: 1 << 18 };

export class ReceiveWindow<T> implements AsyncIterator<T, undefined> {
  private readonly queue = new Queue<{ readonly value: T; readonly bytes: number }>();
  received = 0;
  acknowledged = 0;
  private taken = 0;
  hasEnded = false;
  /** Bytes since the last acknowledgement. */
  private bytes = 0;
  private unacknowledged = 0;

  constructor(
    private readonly window: FlowControlOptions,
    private readonly acknowledge: (taken: number) => void,
  ) {}

  /**
   * Decodes only accepted messages.
   *
   * @throws FrameError out of order or beyond the window
   */
  push(index: number, value: () => T, bytes: number): void {
    this.expect(index);
    const { messages, bytes: most } = this.window;
    if (isFull(this.received - this.acknowledged, this.unacknowledged, this.window)) {
      throw new FrameError(
        `Message ${index} of a stream exceeds the window of ${messages} messages and ${most} bytes`,
      );
    }
    this.queue.push({ value: value(), bytes });
    this.received++;
    this.unacknowledged += bytes;
  }

  /** @throws FrameError if messages are missing */
  end(count: number): void {
    this.expect(count);
    this.hasEnded = true;
    this.queue.end();
  }

  fail(error: unknown): void {
    this.queue.fail(error);
  }

  async next(): Promise<IteratorResult<T, undefined>> {
    const next = await this.queue.next();
    if (next.done) {
      return next;
    }
    const { value, bytes } = next.value;
    this.taken++;
    this.bytes += bytes;
    // The sender may wait for this.
    if (
      this.queue.size === 0 ||
      this.taken - this.acknowledged >= ACKNOWLEDGE_AFTER.messages ||
      this.bytes >= ACKNOWLEDGE_AFTER.bytes
    ) {
      this.acknowledged = this.taken;
      this.unacknowledged -= this.bytes;
      this.bytes = 0;
      this.acknowledge(this.taken);
    }
    return { done: false, value };
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  private expect(index: number): void {
    if (index !== this.received) {
      throw new FrameError(`Message ${index} of a stream came where ${this.received} was expected`);
    }
  }
}

import { type Header, wholeIn } from '../wire/record-reader.js';
import { Queue } from '../../streaming/queue.js';
import { FrameError } from '../wire/prelude.js';

/** How much of one stream may be in flight before the receiver acknowledges some of it. */
export interface FlowControlOptions {
  /**
   * The most messages in flight.
   *
   * @default 64
   */
  readonly messages: number;
  /**
   * The most bytes in flight. One message may always be in flight, however large it is.
   *
   * @default 1048576
   */
  readonly bytes: number;
}

/**
 * The window for sending: what the receiver grants in the header, capped by the sender's own.
 *
 * @throws FrameError for a grant that is malformed
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

/** Whether a sender must wait. One message may always be in flight, however large it is. */
export function isFull(messages: number, bytes: number, window: FlowControlOptions): boolean {
  return messages >= window.messages || (messages > 0 && bytes >= window.bytes);
}

/**
 * The sending end of a sequence of messages. It delays a message until the receiver has room for
 * it.
 */
export class SendWindow {
  /** The bytes of each message in flight, oldest first. */
  private readonly inFlight: number[] = [];
  private bytes = 0;
  private taken = 0;
  /** How many messages the receiver has acknowledged. */
  private credited = 0;
  private isClosed = false;
  private wake = (): void => {};

  constructor(private readonly limits: FlowControlOptions) {}

  /** How many messages were sent. */
  get sent(): number {
    return this.taken + this.inFlight.length;
  }

  /** Resolves with true when another message may be sent, and with false after {@link close}. */
  async room(): Promise<boolean> {
    while (!this.isClosed && isFull(this.inFlight.length, this.bytes, this.limits)) {
      await new Promise<void>((resolve) => (this.wake = resolve));
    }
    return !this.isClosed;
  }

  /** A message of so many bytes was sent. */
  add(bytes: number): void {
    this.inFlight.push(bytes);
    this.bytes += bytes;
    this.release();
  }

  /** The receiver has acknowledged so many messages in all. */
  acknowledge(count: number): void {
    // The credit for a message can arrive before `add`, when sending it takes long.
    this.credited = Math.min(count, this.sent + 1);
    this.release();
    this.wake();
  }

  /** No more messages are sent. */
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

/** A receiver acknowledges after so many messages or bytes. */
const ACKNOWLEDGE_AFTER = { messages: 16, bytes: 1 << 18 };

/**
 * The receiving end of a sequence of messages. It refuses a message that is out of order or beyond
 * the window, and acknowledges those that were read.
 */
export class ReceiveWindow<T> implements AsyncIterator<T, undefined> {
  private readonly queue = new Queue<{ readonly value: T; readonly bytes: number }>();
  /** How many messages were received, and how many of these were acknowledged. */
  received = 0;
  acknowledged = 0;
  private taken = 0;
  /** Whether the end was received. */
  hasEnded = false;
  /** The bytes that were read since the last acknowledgement. */
  private bytes = 0;
  /** The bytes that are not acknowledged yet. */
  private unacknowledged = 0;

  /** `acknowledge` is called with how many messages were read in all. */
  constructor(
    private readonly window: FlowControlOptions,
    private readonly acknowledge: (taken: number) => void,
  ) {}

  /**
   * `value` is decoded only when the message is accepted.
   *
   * @throws FrameError when it is not the next, or beyond the window
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

  /**
   * Ends the sequence after so many messages.
   *
   * @throws FrameError when some are missing
   */
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
    // With an empty queue the sender may be waiting for this acknowledgement.
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

import { type Header, wholeIn } from '../wire/record-reader.js';
import { Queue } from '../../streaming/queue.js';
import { FrameError } from '../wire/prelude.js';

/** How much may be on its way before the other side has taken some of it. */
export interface FlowControlOptions {
  readonly messages: number;
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

/** Whether a sender must wait. One message may always be on its way, however large it is. */
export function isFull(messages: number, bytes: number, window: FlowControlOptions): boolean {
  return messages >= window.messages || (messages > 0 && bytes >= window.bytes);
}

/**
 * The sending end of a sequence of messages: lets no more of them leave than the other side has
 * room for.
 */
export class SendWindow {
  /** The bytes of those on their way, the oldest first; no more than a window of them. */
  private readonly underWay: number[] = [];
  private bytes = 0;
  private taken = 0;
  /** How many the other side says that it has taken. */
  private credited = 0;
  private isClosed = false;
  private wake = (): void => {};

  constructor(private readonly limits: FlowControlOptions) {}

  /** How many have left. */
  get sent(): number {
    return this.taken + this.underWay.length;
  }

  /** Resolves with true when another message may leave; with false when none may any more. */
  async room(): Promise<boolean> {
    while (!this.isClosed && isFull(this.underWay.length, this.bytes, this.limits)) {
      await new Promise<void>((resolve) => (this.wake = resolve));
    }
    return !this.isClosed;
  }

  /** A message of so many bytes has left. */
  add(bytes: number): void {
    this.underWay.push(bytes);
    this.bytes += bytes;
    this.release();
  }

  /** The other side has taken so many, from the first one on. */
  take(count: number): void {
    // The credit for a message can come before `add`, where sending it takes long.
    this.credited = Math.min(count, this.sent + 1);
    this.release();
    this.wake();
  }

  /** Nothing more is to leave. */
  close(): void {
    this.isClosed = true;
    this.wake();
  }

  private release(): void {
    while (this.taken < this.credited && this.underWay.length > 0) {
      this.taken++;
      this.bytes -= this.underWay.shift()!;
    }
  }
}

/** So many messages may be taken before the other side hears of it, and so many bytes. */
const UNACKNOWLEDGED = { messages: 16, bytes: 1 << 18 };

/**
 * The receiving end of a sequence of messages. It refuses a message that is out of order or beyond
 * the window, and tells the sender how many were taken.
 */
export class ReceiveWindow<T> implements AsyncIterator<T, undefined> {
  private readonly queue = new Queue<{ readonly value: T; readonly bytes: number }>();
  private received = 0;
  private taken = 0;
  private acknowledged = 0;
  /** Bytes that were taken since the sender was told. */
  private bytes = 0;
  /** Bytes that the sender must count as under way: it was not told yet that they were taken. */
  private underWay = 0;

  /** `tell` is called with how many have been taken in all. */
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
    if (isFull(this.received - this.acknowledged, this.underWay, this.window)) {
      throw new FrameError(
        `Message ${index} of a stream exceeds the window of ${messages} messages and ${most} bytes`,
      );
    }
    this.queue.push({ value: value(), bytes });
    this.received++;
    this.underWay += bytes;
  }

  /**
   * All have come, so many there are.
   *
   * @throws FrameError when some are missing
   */
  end(count: number): void {
    this.expect(count);
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
    // Who has taken all that came must say so: the other side may be waiting for just that.
    if (
      this.queue.size === 0 ||
      this.taken - this.acknowledged >= UNACKNOWLEDGED.messages ||
      this.bytes >= UNACKNOWLEDGED.bytes
    ) {
      this.acknowledged = this.taken;
      this.underWay -= this.bytes;
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

import { Queue } from '../streaming/queue.js';
import { FrameError } from './wire/prelude.js';
import { isFull, type WindowLimits } from './window.js';

/** So many messages may be taken before the other side hears of it, and so many bytes. */
const UNHEARD = { messages: 16, bytes: 1 << 18 };

/**
 * The receiving end of a sequence of messages. It refuses a message that is out of order or beyond
 * the window, and tells the sender how many were taken.
 */
export class Inbox<T> implements AsyncIterator<T, undefined> {
  private readonly queue = new Queue<{ readonly value: T; readonly bytes: number }>();
  private received = 0;
  private taken = 0;
  private told = 0;
  /** Bytes that were taken since the sender was told. */
  private bytes = 0;
  /** Bytes that the sender must count as under way: it was not told yet that they were taken. */
  private underWay = 0;

  /** `tell` is called with how many have been taken in all. */
  constructor(
    private readonly window: WindowLimits,
    private readonly tell: (taken: number) => void,
  ) {}

  /**
   * `value` is decoded only when the message is accepted.
   *
   * @throws FrameError when it is not the next, or beyond the window
   */
  push(index: number, value: () => T, bytes: number): void {
    this.expect(index);
    const { messages, bytes: most } = this.window;
    if (isFull(this.received - this.told, this.underWay, this.window)) {
      throw new FrameError(`Message ${index} of a stream exceeds the window of ${messages} messages and ${most} bytes`);
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
    if (this.queue.size === 0 || this.taken - this.told >= UNHEARD.messages || this.bytes >= UNHEARD.bytes) {
      this.told = this.taken;
      this.underWay -= this.bytes;
      this.bytes = 0;
      this.tell(this.taken);
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

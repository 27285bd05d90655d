import { Queue } from '../streaming/queue.js';
import { FrameError } from './wire/prelude.js';

/** So many messages may be taken before the other side hears of it, and so many bytes. */
const UNHEARD = { messages: 16, bytes: 1 << 18 };

/** The receiving end of a sequence of messages: notices when one is missing, and tells the other side how many were taken. */
export class Inbox<T> implements AsyncIterator<T, undefined> {
  private readonly queue = new Queue<{ readonly value: T; readonly bytes: number }>();
  private received = 0;
  private taken = 0;
  private told = 0;
  private bytes = 0;

  /** `tell` is called with how many have been taken in all. */
  constructor(private readonly tell: (taken: number) => void) {}

  /** @throws FrameError when it is not the next */
  push(index: number, value: T, bytes: number): void {
    this.expect(index);
    this.received++;
    this.queue.push({ value, bytes });
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

import { type Address, NodeGoneError } from '../transport.js';
import type { FrameToSend } from './frame.js';
import type { SentHeader } from './header.js';
import type { EncodedValue } from './values.js';

export interface SendingCall {
  readonly isOver: boolean;
  /** Set with the first packet. */
  hasLeft?: boolean;
}

export interface MessageToSend extends Pick<FrameToSend, 'kind' | 'call'> {
  readonly header?: SentHeader | undefined;
  /** Milliseconds of `performance.now()`. */
  readonly deadline?: number;
  readonly value?: EncodedValue | undefined;
  readonly of?: SendingCall;
}

export interface Fragments {
  next(): Uint8Array | undefined;
  abandon(): Uint8Array;
}

export interface LaneOptions {
  readonly to: Address;
  readonly window: number;
  readonly maxPacket: () => number;
  readonly encode: (message: MessageToSend) => Uint8Array;
  readonly seal: (frame: Uint8Array) => Uint8Array;
  readonly fragments: (frame: Uint8Array) => Fragments;
  readonly write: (packet: Uint8Array, isFrame: boolean) => void | Promise<void>;
  /** Sends ahead of waiting messages. */
  readonly mark: (number?: number) => number;
}

/** Small messages must leave time for other work. */
const MOST_MESSAGES = 1024;
/** Data between two marks; at most half the window. */
const MARK = { messages: 128, bytes: 512 * 1024 };

interface Amount {
  messages: number;
  bytes: number;
}

interface Mark extends Amount {
  readonly number: number;
}

interface Waiting {
  readonly message: MessageToSend;
  readonly resolve: (bytes: number | PromiseLike<number>) => void;
  readonly reject: (error: unknown) => void;
}

interface Leaving extends Waiting {
  readonly fragments: Fragments;
  readonly bytes: number;
  readonly sent: Promise<void>[];
}

/**
 * Limits how much is in flight to one node: heartbeats, which bypass the lane, arrive soon, and a
 * broker buffers little. Messages wait unencoded, and are dropped if their call ends.
 */
export class SendLane {
  private readonly small: Waiting[] = [];
  private readonly large: Waiting[] = [];
  private current: Leaving | undefined;
  private sinceFragment = 0;
  private readonly unread: Amount = { messages: 0, bytes: 0 };
  private unmarked: Amount = { messages: 0, bytes: 0 };
  /** Oldest first, not yet returned. */
  private readonly marks: Mark[] = [];
  private hasMoved = true;

  private readonly markBytes: number;

  constructor(private readonly options: LaneOptions) {
    this.markBytes = Math.min(MARK.bytes, options.window / 2);
  }

  get waiting(): number {
    return this.small.length + this.large.length + (this.current ? 1 : 0);
  }

  /** Returns the bytes sent, or 0 if the call ended first. */
  send(message: MessageToSend): number | Promise<number> {
    const { maxPacket, encode, seal } = this.options;
    const isLarge = message.value !== undefined && leastSize(message.value) > maxPacket();
    if (!isLarge && this.small.length === 0 && !this.isFull) {
      const frame = encode(message);
      if (frame.byteLength <= maxPacket()) {
        return this.writeSmall(message, seal(frame));
      }
    }
    return new Promise((resolve, reject) => {
      (isLarge ? this.large : this.small).push({ message, resolve, reject });
      this.pump();
    });
  }

  returned(number: number): void {
    const { unread, marks } = this;
    while (marks.length > 0 && marks[0]!.number <= number) {
      const { messages, bytes } = marks.shift()!;
      unread.messages -= messages;
      unread.bytes -= bytes;
      this.hasMoved = true;
    }
    this.pump();
  }

  /** Returns false without progress, and resends the last mark, which may be lost. */
  remind(): boolean {
    const last = this.marks.at(-1);
    const hasMoved = this.hasMoved || (!last && this.waiting === 0);
    if (!hasMoved && last) {
      this.options.mark(last.number);
    }
    this.hasMoved = false;
    return hasMoved;
  }

  close(): void {
    const error = new NodeGoneError(this.options.to);
    const { current, small, large } = this;
    const all = [...(current ? [current] : []), ...small.splice(0), ...large.splice(0)];
    this.current = undefined;
    all.forEach(({ reject }) => reject(error));
  }

  private get isFull(): boolean {
    const { messages, bytes } = this.unread;
    return messages >= MOST_MESSAGES || bytes >= this.options.window;
  }

  private pump(): void {
    const { small } = this;
    while (!this.isFull) {
      this.current ??= this.begin();
      // Neither small messages nor fragments may starve.
      const isTurnOfSmall = !this.current || this.sinceFragment < this.options.maxPacket();
      const waiting = isTurnOfSmall ? small.shift() : undefined;
      if (waiting) {
        this.sendSmall(waiting);
      } else if (this.current) {
        this.sendFragment(this.current);
      } else {
        return;
      }
    }
  }

  private begin(): Leaving | undefined {
    for (let next = this.large.shift(); next; next = this.large.shift()) {
      const waiting = next;
      if (waiting.message.of?.isOver) {
        waiting.resolve(0);
        continue;
      }
      try {
        const frame = this.options.encode(waiting.message);
        const fragments = this.options.fragments(frame);
        return { ...waiting, fragments, bytes: frame.byteLength, sent: [] };
      } catch (error) {
        waiting.reject(error);
      }
    }
    return undefined;
  }

  private sendSmall(waiting: Waiting): void {
    const { message, resolve, reject } = waiting;
    if (message.of?.isOver) {
      resolve(0);
      return;
    }
    try {
      const { encode, maxPacket, seal } = this.options;
      const frame = encode(message);
      if (frame.byteLength > maxPacket()) {
        this.large.push(waiting);
      } else {
        resolve(this.writeSmall(message, seal(frame)));
      }
    } catch (error) {
      reject(error);
    }
  }

  private writeSmall({ of }: MessageToSend, packet: Uint8Array): number | Promise<number> {
    const { byteLength } = packet;
    if (of) {
      of.hasLeft = true;
    }
    this.sinceFragment += byteLength;
    const sent = this.write(packet, true);
    return sent ? sent.then(() => byteLength) : byteLength;
  }

  private sendFragment(leaving: Leaving): void {
    const { message, fragments, bytes, sent, resolve, reject } = leaving;
    this.sinceFragment = 0;
    try {
      if (message.of?.isOver) {
        this.current = undefined;
        void this.write(fragments.abandon(), false)?.catch(() => {});
        resolve(0);
        return;
      }
      const packet = fragments.next();
      if (!packet) {
        this.current = undefined;
        resolve(Promise.all(sent).then(() => bytes));
        return;
      }
      if (message.of) {
        message.of.hasLeft = true;
      }
      const written = this.write(packet, false);
      if (written) {
        sent.push(written);
        written.catch((error: unknown) => this.failCurrent(leaving, error));
      }
    } catch (error) {
      this.current = undefined;
      reject(error);
    }
  }

  private failCurrent(leaving: Leaving, error: unknown): void {
    leaving.reject(error);
    if (this.current === leaving) {
      this.current = undefined;
      this.pump();
    }
  }

  private write(packet: Uint8Array, isFrame: boolean): void | Promise<void> {
    const sent = this.options.write(packet, isFrame);
    const { unread, unmarked } = this;
    unread.messages++;
    unread.bytes += packet.byteLength;
    unmarked.messages++;
    unmarked.bytes += packet.byteLength;
    if (unmarked.messages >= MARK.messages || unmarked.bytes >= this.markBytes) {
      this.unmarked = { messages: 0, bytes: 0 };
      this.marks.push({ ...unmarked, number: this.options.mark() });
    }
    return sent;
  }
}

/** Lower bound in bytes. */
function leastSize({ text, blocks }: EncodedValue): number {
  let size = text.length;
  for (const { data } of blocks) {
    size += data.byteLength;
  }
  return size;
}

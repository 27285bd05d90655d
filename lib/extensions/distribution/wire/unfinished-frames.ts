import type { Address } from '../transport.js';
import { FrameError, FrameTooLargeError } from './prelude.js';

interface Unfinished {
  readonly bytes: Uint8Array;
  /** Number and bytes of the received fragments. */
  fragments: number;
  length: number;
  receivedAt: number;
}

/** One sender's frames, by number, and their cost in bytes. */
interface Sender {
  readonly frames: Map<number, Unfinished>;
  cost: number;
}

/** Limits per sender and in total, as multiples of the largest frame. */
const FRAMES_OF_ONE = 4;
const FRAMES_OF_ALL = 16;

/** Overhead of a frame in bytes. */
const COST = 1024;

/** Milliseconds without a fragment after which a frame makes room for others. */
const IDLE_AFTER = 60_000;

/**
 * Assembles frames from fragments. A frame's fragments arrive in order; other packets may come
 * between them.
 */
export class UnfinishedFrames {
  private readonly senders = new Map<Address, Sender>();
  private total = 0;

  constructor(
    /** In bytes. */
    private readonly largest: number,
    private readonly now: () => number,
  ) {}

  get cost(): number {
    return this.total;
  }

  /**
   * Returns the frame if this fragment completes it.
   *
   * @throws FrameError if the fragment is out of order, which drops its frame, or there's no room
   */
  add(header: Readonly<Record<string, unknown>>, part: unknown): Uint8Array | undefined {
    const { from, id, index, total } = header;
    if (
      typeof from !== 'string' ||
      !isCount(id) ||
      !isCount(index) ||
      !isCount(total) ||
      !(part instanceof Uint8Array)
    ) {
      throw new FrameError('A fragment that does not name its frame, or has no bytes');
    }
    if (total === 0) {
      // The sender abandons the frame: its call is over.
      this.drop(from, id);
      return undefined;
    }
    const begun = this.senders.get(from)?.frames.get(id);
    const frame = begun ?? (index === 0 ? this.begin(from, id, total, part) : undefined);
    const follows = frame && index === frame.fragments && total === frame.bytes.length;
    if (!follows || part.length === 0 || part.length > total - frame.length) {
      this.drop(from, id);
      throw new FrameError(
        `Fragment ${index} of a frame of ${total} bytes does not follow on what came before`,
      );
    }
    frame.bytes.set(part, frame.length);
    frame.length += part.length;
    frame.fragments++;
    frame.receivedAt = this.now();
    if (frame.length < total) {
      return undefined;
    }
    this.drop(from, id);
    return frame.bytes;
  }

  dropFrom(address: Address): void {
    this.total -= this.senders.get(address)?.cost ?? 0;
    this.senders.delete(address);
  }

  private begin(from: Address, id: number, total: number, part: Uint8Array): Unfinished {
    if (total > this.largest) {
      throw new FrameTooLargeError(
        `A frame of ${total} bytes in fragments; at most ${this.largest} are allowed`,
        part,
      );
    }
    if (!this.hasRoom(from, total)) {
      this.dropIdle();
    }
    if (!this.hasRoom(from, total)) {
      throw new FrameTooLargeError(
        `There is no room for a frame of ${total} bytes in fragments: too many others are not ` +
          'finished',
        part,
      );
    }
    const frame = { bytes: new Uint8Array(total), fragments: 0, length: 0, receivedAt: this.now() };
    const sender = this.senders.get(from) ?? { frames: new Map(), cost: 0 };
    this.senders.set(from, sender);
    sender.frames.set(id, frame);
    sender.cost += total + COST;
    this.total += total + COST;
    return frame;
  }

  private hasRoom(from: Address, total: number): boolean {
    const most = this.largest + COST;
    const cost = total + COST;
    return (
      (this.senders.get(from)?.cost ?? 0) + cost <= FRAMES_OF_ONE * most &&
      this.total + cost <= FRAMES_OF_ALL * most
    );
  }

  private dropIdle(): void {
    const before = this.now() - IDLE_AFTER;
    for (const [from, { frames }] of this.senders) {
      for (const [id, { receivedAt }] of frames) {
        if (receivedAt < before) {
          this.drop(from, id);
        }
      }
    }
  }

  private drop(from: Address, id: number): void {
    const sender = this.senders.get(from);
    const frame = sender?.frames.get(id);
    if (!sender || !frame) {
      return;
    }
    sender.frames.delete(id);
    sender.cost -= frame.bytes.length + COST;
    this.total -= frame.bytes.length + COST;
    if (sender.frames.size === 0) {
      this.senders.delete(from);
    }
  }
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

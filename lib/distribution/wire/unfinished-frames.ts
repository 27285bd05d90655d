import type { Address } from '../transport.js';
import { FrameError } from './prelude.js';

/** The bytes of a frame of which fragments are still to come. */
interface Unfinished {
  readonly bytes: Uint8Array;
  readonly cost: number;
  /** The fragments that have come, and the bytes in them. */
  fragments: number;
  length: number;
  heardAt: number;
}

/** So many of the largest frames may be unfinished: of one sender, and of all. */
const FRAMES_OF_ONE = 4;
const FRAMES_OF_ALL = 16;

/** What a frame costs beside its bytes. */
const COST = 1024;

/** What has not gone on for this many milliseconds makes room for others. */
const PATIENCE = 60_000;

/** Puts frames together from their fragments, which come in order from each sender, those of different frames in turn. */
export class UnfinishedFrames {
  private readonly senders = new Map<Address, Map<number, Unfinished>>();

  constructor(
    /** The bytes of the largest frame. */
    private readonly largest: number,
    private readonly now: () => number,
  ) {}

  /** The bytes that are kept for frames of the sender, or of all. */
  cost(from?: Address): number {
    const frames = from === undefined ? [...this.senders.values()] : [this.senders.get(from) ?? new Map<number, Unfinished>()];
    return frames.reduce((sum, each) => [...each.values()].reduce((of, { cost }) => of + cost, sum), 0);
  }

  /** The frame, if it is whole with this fragment. */
  add(header: Readonly<Record<string, unknown>>, part: unknown): Uint8Array | undefined {
    const { from, id, index, total } = header;
    if (typeof from !== 'string' || !isCount(id) || !isCount(index) || !isCount(total) || !(part instanceof Uint8Array)) {
      throw new FrameError('A fragment that does not say what it is a part of');
    }
    const frame = index === 0 ? this.begin(from, id, total) : this.senders.get(from)?.get(id);
    if (
      !frame ||
      index !== frame.fragments ||
      total !== frame.bytes.length ||
      part.length === 0 ||
      part.length > total - frame.length
    ) {
      this.drop(from, id);
      throw new FrameError(`Fragment ${index} of a frame of ${total} bytes does not follow on what came before`);
    }
    frame.bytes.set(part, frame.length);
    frame.length += part.length;
    frame.fragments++;
    frame.heardAt = this.now();
    if (frame.length < total) {
      return undefined;
    }
    this.drop(from, id);
    return frame.bytes;
  }

  forget(from: Address): void {
    this.senders.delete(from);
  }

  private begin(from: Address, id: number, total: number): Unfinished | undefined {
    const frames = this.senders.get(from) ?? new Map<number, Unfinished>();
    if (frames.has(id)) {
      return undefined;
    }
    if (total > this.largest) {
      throw new FrameError(`A frame of ${total} bytes in fragments; at most ${this.largest} are allowed`);
    }
    const cost = total + COST;
    if (!this.hasRoom(from, cost)) {
      this.dropSilent();
      if (!this.hasRoom(from, cost)) {
        throw new FrameError(`There is no room for a frame of ${total} bytes in fragments: too many others are unfinished`);
      }
    }
    const frame = { bytes: new Uint8Array(total), cost, fragments: 0, length: 0, heardAt: this.now() };
    this.senders.set(from, frames.set(id, frame));
    return frame;
  }

  private hasRoom(from: Address, cost: number): boolean {
    const most = this.largest + COST;
    return this.cost(from) + cost <= FRAMES_OF_ONE * most && this.cost() + cost <= FRAMES_OF_ALL * most;
  }

  private dropSilent(): void {
    const before = this.now() - PATIENCE;
    for (const [from, frames] of this.senders) {
      for (const [id, { heardAt }] of frames) {
        if (heardAt < before) {
          this.drop(from, id);
        }
      }
    }
  }

  private drop(from: Address, id: number): void {
    const frames = this.senders.get(from);
    frames?.delete(id);
    if (frames?.size === 0) {
      this.senders.delete(from);
    }
  }
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

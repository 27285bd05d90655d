import { RequestTooLargeError } from '../../../index.js';
import type { Address } from '../transport.js';
import { defaultWireLimits, type WireLimits } from './limits.js';
import { decodeFrame, encodeFrame, type Spare } from './frame.js';
import {
  FrameError,
  FrameTooLargeError,
  headLength,
  Kind,
  packetLength,
  reading,
  TRAILER,
} from './prelude.js';
import type { Fragments } from './send-lane.js';
import { isSigned, type Secrets, Signer, Verifier } from './signature.js';
import { encodeValue } from './values.js';

export interface PackerOptions {
  readonly from: Address;
  readonly maxPacket: number;
  readonly limits?: WireLimits | undefined;
  readonly secret?: Secrets | undefined;
  /** Milliseconds since 1970. */
  readonly now?: (() => number) | undefined;
}

export class Packer {
  readonly spare: Spare;
  private readonly room: number;
  private readonly signer: Signer | undefined;
  private frames = 0;

  constructor(private readonly options: PackerOptions) {
    const { maxPacket, secret, now = Date.now } = options;
    this.signer = secret === undefined ? undefined : new Signer(secret, now);
    this.spare = this.signer ? TRAILER : 0;
    const most = Number.MAX_SAFE_INTEGER;
    this.room =
      maxPacket -
      this.fragment({ id: most, index: most, total: most }, new Uint8Array(0)).byteLength;
    this.room -= this.room % 8;
    if (this.room < 8) {
      throw new RangeError(`Packets of ${maxPacket} bytes are too small for frames`);
    }
  }

  /**
   * Packs a frame once: packets use its memory.
   *
   * @throws RequestTooLargeError
   */
  pack(frame: Uint8Array): readonly Uint8Array[] {
    if (frame.byteLength <= this.options.maxPacket) {
      return [this.seal(frame)];
    }
    const fragments = this.fragmentsOf(frame);
    const packets: Uint8Array[] = [];
    for (let packet = fragments.next(); packet; packet = fragments.next()) {
      packets.push(packet);
    }
    return packets;
  }

  /** @throws RequestTooLargeError */
  seal(frame: Uint8Array): Uint8Array {
    this.checkSize(frame);
    this.signer?.sign(frame);
    return frame;
  }

  /**
   * Makes packets on demand.
   *
   * @throws RequestTooLargeError
   */
  fragmentsOf(frame: Uint8Array): Fragments {
    this.checkSize(frame);
    const { byteLength: total } = frame;
    const id = this.frames++;
    let index = 0;
    const sealed = (place: { id: number; index: number; total: number }, bytes: Uint8Array) => {
      const packet = this.fragment(place, bytes);
      this.signer?.sign(packet);
      return packet;
    };
    return {
      next: () => {
        const at = index * this.room;
        return at < total
          ? sealed({ id, index: index++, total }, frame.subarray(at, at + this.room))
          : undefined;
      },
      abandon: () => sealed({ id, index, total: 0 }, new Uint8Array(0)),
    };
  }

  private checkSize(frame: Uint8Array): void {
    const { bytes, headerBytes } = this.options.limits ?? defaultWireLimits;
    const head = headLength(frame);
    if (frame.byteLength > bytes || head > headerBytes) {
      throw new RequestTooLargeError(
        `${frame.byteLength} bytes, ${head} of them for the options of the call, are too many to ` +
          'send to another node: ' +
          `"limits" of the option "distribution" allow at most ${bytes} and ${headerBytes} ` +
          '("bytes" and "headerBytes")',
      );
    }
  }

  private fragment(
    place: { id: number; index: number; total: number },
    bytes: Uint8Array,
  ): Uint8Array {
    const header = { from: this.options.from, ...place };
    return encodeFrame(
      { kind: Kind.fragment, header, value: encodeValue(bytes, fragmentLimits) },
      this.spare,
    );
  }
}

export interface UnpackerOptions {
  readonly limits?: WireLimits | undefined;
  readonly secret?: Secrets | undefined;
  /** Milliseconds since 1970. */
  readonly now?: (() => number) | undefined;
  /** Milliseconds of a monotonic clock. */
  readonly uptime?: (() => number) | undefined;
  readonly onFragment?: ((from: Address) => void) | undefined;
}

export class Unpacker {
  private readonly limits: WireLimits;
  private readonly verifier: Verifier | undefined;
  private readonly unfinished: UnfinishedFrames;
  private readonly onFragment: ((from: Address) => void) | undefined;

  constructor({
    limits = defaultWireLimits,
    secret,
    now = Date.now,
    uptime = () => performance.now(),
    onFragment,
  }: UnpackerOptions = {}) {
    this.limits = limits;
    this.onFragment = onFragment;
    this.verifier = secret === undefined ? undefined : new Verifier(secret, now, uptime);
    this.unfinished = new UnfinishedFrames(limits.bytes, uptime);
  }

  /** @throws FrameError for an invalid packet, a wrong signature, or a fragment out of order */
  receive(packet: Uint8Array): Uint8Array | undefined {
    return reading(() => this.read(packet));
  }

  dropFrom(address: Address): void {
    this.unfinished.dropFrom(address);
  }

  private read(packet: Uint8Array): Uint8Array | undefined {
    if (packetLength(packet) !== packet.byteLength) {
      throw new FrameError(
        `A packet of ${packetLength(packet)} bytes came in ${packet.byteLength}`,
      );
    }
    if (this.verifier) {
      this.verifier.verify(packet);
    } else if (isSigned(packet)) {
      throw new FrameError('A packet is signed, and this node has no secret to check that with');
    }
    if (packet[4] !== Kind.fragment) {
      return packet;
    }
    const { header, value } = decodeFrame(packet, { ...fragmentLimits, bytes: this.limits.bytes });
    if (typeof header['from'] === 'string') {
      this.onFragment?.(header['from']);
    }
    return this.unfinished.add(header, value());
  }
}

/** A fragment is little more than bytes. */
const fragmentLimits: WireLimits = {
  bytes: Infinity,
  tensors: 1,
  rank: 1,
  headerBytes: 1024,
  depth: 4,
  nodes: 16,
};

interface Unfinished {
  readonly bytes: Uint8Array;
  fragments: number;
  length: number;
  receivedAt: number;
}

interface Sender {
  readonly frames: Map<number, Unfinished>;
  cost: number;
}

/** Limits per sender and in total, in largest frames. */
const FRAMES_OF_ONE = 4;
const FRAMES_OF_ALL = 16;

/** Overhead in bytes. */
const COST = 1024;

/** Milliseconds. */
const IDLE_AFTER = 60_000;

export class UnfinishedFrames {
  private readonly senders = new Map<Address, Sender>();
  private total = 0;

  constructor(
    /** Bytes. */
    private readonly largest: number,
    private readonly now: () => number,
  ) {}

  get cost(): number {
    return this.total;
  }

  /**
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

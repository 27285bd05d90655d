import { setImmediate as endOfTurn } from 'node:timers/promises';
import type { Address, ServingTransport } from '../transport.js';
import { decodeFrame, frameOf, type Head, headOf } from './frame.js';
import { HeaderReader, SentHeader } from './header.js';
import { Packer, Unpacker } from './packets.js';
import { FrameError, FrameTooLargeError, Kind, reading } from './prelude.js';
import type { WireLimits } from './limits.js';
import type { Secrets } from './signature.js';
import { type MessageToSend, SendLane } from './send-lane.js';

/** Default of `ServingTransport.window`. */
const WINDOW = 8 * 2 ** 20;

export interface MessageHead extends Head {
  readonly from: Address;
}

export interface Message extends MessageHead {
  readonly bytes: number;
  /** @throws FrameError */
  readonly value: () => unknown;
}

export type { MessageToSend };

export interface MessengerOptions {
  readonly address: Address;
  readonly transport: ServingTransport;
  readonly limits: WireLimits;
  readonly secret: Secrets | undefined;
  readonly onMessage: (message: Message) => void;
  readonly onTooLarge: (message: MessageHead, error: FrameError) => void;
  readonly onFragment?: (from: Address) => void;
  /** Also called for messages too large. */
  readonly onInvalidFrame: (error: FrameError) => void;
}

export class Messenger {
  private readonly unpacker: Unpacker;
  private readonly headers: HeaderReader;
  private readonly memory = new FrameMemory();
  private readonly noFields = new SentHeader({});
  private packing: { readonly packer: Packer; readonly maxPacket: number } | undefined;
  private readonly lanes = new Map<Address, SendLane>();
  private marks = 0;

  constructor(private readonly options: MessengerOptions) {
    this.unpacker = new Unpacker(options);
    this.headers = new HeaderReader(options.limits);
  }

  /**
   * Returns the bytes sent. Messages that keep calls and nodes alive don't wait for others.
   *
   * @throws NodeGoneError if the receiver is gone
   */
  send(to: Address, message: MessageToSend): number | Promise<number> {
    return to === this.options.address || goesPast(message.kind)
      ? this.sendPast(to, message)
      : (this.lanes.get(to) ?? this.openLane(to)).send(message);
  }

  /** Ignores errors: the membership notices lost nodes. */
  trySend(to: Address, message: MessageToSend): void | Promise<void> {
    try {
      const sent = this.send(to, message);
      return typeof sent === 'number' ? undefined : sent.then(noop, noop);
    } catch {
      return undefined;
    }
  }

  async broadcast(message: MessageToSend): Promise<void> {
    for (const packet of this.packer.pack(this.frame(message))) {
      await this.options.transport.broadcast(packet);
    }
  }

  receive(packet: Uint8Array): boolean {
    const { limits, onMessage, onInvalidFrame } = this.options;
    try {
      const bytes = this.unpacker.receive(packet);
      if (bytes) {
        const frame = decodeFrame(bytes, limits, this.headers);
        this.checkReceiver(frame);
        const { kind, call, timeout, header, value } = frame;
        const from = senderOf(header);
        onMessage({ kind, call, timeout, header, from, bytes: bytes.byteLength, value });
      }
      return true;
    } catch (error) {
      if (!(error instanceof FrameError)) {
        throw error;
      }
      onInvalidFrame(error);
      if (error instanceof FrameTooLargeError) {
        this.reportTooLarge(error);
      }
      return false;
    }
  }

  drop(address: Address): void {
    this.unpacker.dropFrom(address);
    this.lanes.get(address)?.close();
    this.lanes.delete(address);
  }

  returnMark({ from, call }: MessageHead): void {
    void this.trySend(from, { kind: Kind.marked, call });
  }

  marked({ from, call }: MessageHead): void {
    this.lanes.get(from)?.returned(call);
  }

  /** Resends marks that seem lost; drops unknown nodes that are stalled or idle. */
  remind(isKnown: (address: Address) => boolean): void {
    for (const [address, lane] of this.lanes) {
      const hasMoved = lane.remind();
      if (!isKnown(address) && (!hasMoved || lane.waiting === 0)) {
        this.drop(address);
      }
    }
  }

  private reportTooLarge(error: FrameTooLargeError): void {
    const { onTooLarge, onInvalidFrame } = this.options;
    try {
      const head = reading(() => headOf(error.beginning, this.headers));
      this.checkReceiver(head);
      onTooLarge({ ...head, from: senderOf(head.header) }, error);
    } catch (cause) {
      if (!(cause instanceof FrameError)) {
        throw cause;
      }
      onInvalidFrame(cause);
    }
  }

  private openLane(to: Address): SendLane {
    const { transport } = this.options;
    const lane = new SendLane({
      to,
      window: transport.window ?? WINDOW,
      maxPacket: () => transport.maxPacket,
      encode: (message) => this.frame(message, to),
      seal: (frame) => this.packer.seal(frame),
      fragments: (frame) => this.packer.fragmentsOf(frame),
      write: (packet, isFrame) => this.sendPacket(to, packet, isFrame ? this.free : undefined),
      mark: (number = ++this.marks) => {
        void this.trySend(to, { kind: Kind.mark, call: number });
        return number;
      },
    });
    this.lanes.set(to, lane);
    return lane;
  }

  private sendPast(to: Address, message: MessageToSend): number | Promise<number> {
    const frame = this.frame(message, to);
    const { byteLength } = frame;
    if (message.of) {
      message.of.hasLeft = true;
    }
    const sent =
      byteLength > this.options.transport.maxPacket
        ? this.sendPackets(to, frame)
        : this.sendPacket(to, this.packer.seal(frame), this.free);
    return sent ? sent.then(() => byteLength) : byteLength;
  }

  private async sendPackets(to: Address, frame: Uint8Array): Promise<void> {
    for (const packet of this.packer.pack(frame)) {
      await this.sendPacket(to, packet);
    }
  }

  private sendPacket(
    to: Address,
    packet: Uint8Array,
    free?: (packet: Uint8Array) => void,
  ): void | Promise<void> {
    const { address, transport } = this.options;
    return to === address ? this.loopBack(packet) : transport.send(to, packet, free);
  }

  private readonly free = (packet: Uint8Array): void => this.memory.give(packet);

  /** A broker's restart may change `maxPacket`. */
  private get packer(): Packer {
    const { transport, limits, secret, address } = this.options;
    const { maxPacket } = transport;
    if (this.packing?.maxPacket !== maxPacket) {
      this.packing = {
        packer: new Packer({ from: address, maxPacket, limits, secret }),
        maxPacket,
      };
    }
    return this.packing.packer;
  }

  private async loopBack(packet: Uint8Array): Promise<void> {
    await endOfTurn();
    this.receive(packet);
  }

  /** A signed message must not be replayed to another node. Heartbeats go to all. */
  private checkReceiver({ kind, header }: Head): void {
    const { to } = header;
    if (to !== this.options.address && (to !== undefined || kind < Kind.heartbeat)) {
      throw new FrameError('A frame is for another node');
    }
  }

  private frame(message: MessageToSend, to?: Address): Uint8Array {
    const { kind, call, deadline = Infinity, value } = message;
    const header = (message.header ?? this.noFields).bytes(this.options.address, to);
    const timeout =
      deadline === Infinity ? deadline : Math.max(0, Math.ceil(deadline - performance.now()));
    const content = { kind, call, timeout, value };
    return frameOf(content, header, this.packer.spare, this.memory.take);
  }
}

function noop(): void {}

const past: ReadonlySet<Kind> = new Set([
  Kind.credit,
  Kind.cancel,
  Kind.check,
  Kind.inputCredit,
  Kind.status,
]);

function goesPast(kind: Kind): boolean {
  return kind >= Kind.heartbeat || past.has(kind);
}

function senderOf({ from }: Head['header']): Address {
  if (typeof from !== 'string' || from === '') {
    throw new FrameError('A frame without the address of its sender');
  }
  return from;
}

/** Bytes of a slab, and of its largest frame. */
const SLAB = 64 * 1024;
const SMALL = 16 * 1024;
/** Bytes of the largest frame whose memory is reused. */
const LARGE = 1024 * 1024;
/** Block sizes are its multiples, so similar frames share blocks. */
const STEP = 64 * 1024;
/** Most bytes of free blocks. */
const MOST_KEPT = 8 * 1024 * 1024;

/**
 * Small frames share slabs: allocating costs more than writing. Large frames reuse blocks:
 * allocations outside the heap make the garbage collector run sooner.
 */
export class FrameMemory {
  private slab = Buffer.alloc(0);
  private used = 0;
  private readonly blocks = new Map<number, ArrayBufferLike[]>();
  private kept = 0;

  /** Returns uninitialised memory. */
  readonly take = (length: number): Buffer => {
    if (length > LARGE) {
      return Buffer.allocUnsafeSlow(length);
    }
    if (length > SMALL) {
      return Buffer.from(this.block(Math.ceil(length / STEP) * STEP), 0, length);
    }
    if (this.used + length > this.slab.byteLength) {
      this.slab = Buffer.allocUnsafeSlow(SLAB);
      this.used = 0;
    }
    return this.slab.subarray(this.used, (this.used += length));
  };

  /** Nothing may read the memory any more. */
  give({ buffer, byteLength }: Uint8Array): void {
    const size = buffer.byteLength;
    if (byteLength > SMALL && byteLength <= LARGE && this.kept + size <= MOST_KEPT) {
      this.kept += size;
      const blocks = this.blocks.get(size);
      if (blocks) {
        blocks.push(buffer);
      } else {
        this.blocks.set(size, [buffer]);
      }
    }
  }

  private block(size: number): ArrayBufferLike {
    const block = this.blocks.get(size)?.pop();
    if (!block) {
      return Buffer.allocUnsafeSlow(size).buffer;
    }
    this.kept -= size;
    return block;
  }
}

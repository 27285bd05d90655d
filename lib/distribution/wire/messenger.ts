import { setImmediate as endOfTurn } from 'node:timers/promises';
import type { Address, ServingTransport } from '../transport.js';
import { decodeFrame, frameOf, type Head, headOf } from './frame.js';
import { FrameMemory } from './frame-memory.js';
import { HeaderReader, SentHeader } from './header.js';
import { Packer, Unpacker } from './packets.js';
import { FrameError, Kind, reading, FrameTooLargeError } from './prelude.js';
import type { WireLimits } from './limits.js';
import type { Secret } from './signature.js';
import type { EncodedValue } from './values.js';

/** A message to send. */
export interface MessageToSend {
  readonly kind: Kind;
  /** Without a header, the frame has the addresses of both nodes alone. */
  readonly header?: SentHeader | undefined;
  /** The number of the call that it belongs to. */
  readonly call?: number;
  /** The milliseconds that a request has. */
  readonly timeout?: number;
  readonly value?: EncodedValue | undefined;
}

/** The content of a received frame, without its value. */
export interface MessageHead extends Head {
  readonly from: Address;
}

/** A received frame. */
export interface Message extends MessageHead {
  /** Its size in bytes. */
  readonly bytes: number;
  /**
   * Decodes the value.
   *
   * @throws FrameError when it is invalid
   */
  readonly value: () => unknown;
}

export interface MessengerOptions {
  readonly address: Address;
  readonly transport: ServingTransport;
  readonly limits: WireLimits;
  /** The secret of the namespace. */
  readonly secret: Secret | undefined;
  readonly onMessage: (message: Message) => void;
  /** Called for a message that is too large to be read. */
  readonly onTooLarge: (message: MessageHead, error: FrameError) => void;
  /** Called for bytes that are no message, and for messages that are too large. */
  readonly onInvalidFrame: (error: FrameError) => void;
}

/** Sends frames as packets, and assembles frames from received packets. */
export class Messenger {
  private readonly unpacker: Unpacker;
  private readonly headers: HeaderReader;
  private readonly memory = new FrameMemory();
  private readonly noFields = new SentHeader({});
  private packing: { readonly packer: Packer; readonly maxPacket: number } | undefined;
  /**
   * By receiver, the sending of its last fragmented frame: a receiver keeps only one unfinished
   * frame at a time.
   */
  private readonly sendQueues = new Map<Address, Promise<unknown>>();

  constructor(private readonly options: MessengerOptions) {
    this.unpacker = new Unpacker(options);
    this.headers = new HeaderReader(options.limits);
  }

  /**
   * Returns the number of bytes sent; a promise of it only where sending takes time.
   *
   * @throws NodeGoneError when the receiver is known to be gone
   */
  send(to: Address, message: MessageToSend): number | Promise<number> {
    const frame = this.frame(message, to);
    const { byteLength } = frame;
    const sent =
      byteLength > this.options.transport.maxPacket
        ? this.sendInOrder(to, frame)
        : this.sendPacket(to, this.packer.seal(frame), this.free);
    return sent ? sent.then(() => byteLength) : byteLength;
  }

  /** Sends. An error is ignored: the node is gone, which the membership notices. */
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

  receive(packet: Uint8Array): void {
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
    } catch (error) {
      if (!(error instanceof FrameError)) {
        throw error;
      }
      onInvalidFrame(error);
      if (error instanceof FrameTooLargeError) {
        this.reportTooLarge(error);
      }
    }
  }

  /** Drops the unfinished frames of the sender. */
  dropFrom(address: Address): void {
    this.unpacker.dropFrom(address);
  }

  /** Passes on the header, so that an answer ends the wait of the sender. */
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

  private async sendInOrder(to: Address, frame: Uint8Array): Promise<void> {
    const before = this.sendQueues.get(to);
    const sent = (async () => {
      await before?.catch(() => {});
      await this.sendPackets(to, frame);
    })();
    this.sendQueues.set(to, sent);
    try {
      await sent;
    } finally {
      if (this.sendQueues.get(to) === sent) {
        this.sendQueues.delete(to);
      }
    }
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

  /**
   * The largest packet is known once the transport has started, and may shrink when a broker
   * restarts.
   */
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

  /** A message to this node takes the same path as any other, except for the transport. */
  private async loopBack(packet: Uint8Array): Promise<void> {
    await endOfTurn();
    this.receive(packet);
  }

  /**
   * A message signed for one node must not be replayed to another. Heartbeats are for all nodes.
   */
  private checkReceiver({ kind, header }: Head): void {
    const { to } = header;
    if (to !== this.options.address && (to !== undefined || kind < Kind.heartbeat)) {
      throw new FrameError('A frame is for another node');
    }
  }

  private frame(message: MessageToSend, to?: Address): Uint8Array {
    const header = (message.header ?? this.noFields).bytes(this.options.address, to);
    return frameOf(message, header, this.packer.spare, this.memory.take);
  }
}

function noop(): void {}

function senderOf({ from }: Head['header']): Address {
  if (typeof from !== 'string' || from === '') {
    throw new FrameError('A frame without the address of its sender');
  }
  return from;
}

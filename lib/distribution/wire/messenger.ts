import { setImmediate as endOfTurn } from 'node:timers/promises';
import type { Address, ServingTransport } from '../transport.js';
import { decodeFrame, encodeFrame, type Frame, headOf } from './frame.js';
import { Packer, Unpacker } from './packets.js';
import { FrameError, Kind, reading, FrameTooLargeError } from './prelude.js';
import type { WireLimits } from './limits.js';
import type { Secret } from './signature.js';
import type { EncodedValue } from './values.js';

/** A received frame. */
export interface Message {
  readonly kind: Kind;
  readonly from: Address;
  readonly header: Readonly<Record<string, unknown>>;
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
  readonly onTooLarge: (
    message: Pick<Message, 'kind' | 'from' | 'header'>,
    error: FrameError,
  ) => void;
  /** Called for bytes that are no message, and for messages that are too large. */
  readonly onInvalidFrame: (error: FrameError) => void;
}

/** Sends frames as packets, and assembles frames from received packets. */
export class Messenger {
  private readonly unpacker: Unpacker;
  private packing: { readonly packer: Packer; readonly maxPacket: number } | undefined;
  /**
   * By receiver, the sending of its last fragmented frame: a receiver keeps only one unfinished
   * frame at a time.
   */
  private readonly sendQueues = new Map<Address, Promise<unknown>>();

  constructor(private readonly options: MessengerOptions) {
    this.unpacker = new Unpacker(options);
  }

  /**
   * Returns the number of bytes sent.
   *
   * @throws NodeGoneError when the receiver is known to be gone
   */
  async send(to: Address, kind: Kind, header: object, value?: EncodedValue): Promise<number> {
    const { address, transport } = this.options;
    const frame = this.frame(kind, { from: address, to, ...header }, value);
    await (frame.byteLength > transport.maxPacket
      ? this.sendInOrder(to, frame)
      : this.sendPackets(to, frame));
    return frame.byteLength;
  }

  async broadcast(kind: Kind, header: object): Promise<void> {
    for (const packet of this.packer.pack(
      this.frame(kind, { from: this.options.address, ...header }),
    )) {
      await this.options.transport.broadcast(packet);
    }
  }

  receive(packet: Uint8Array): void {
    const { limits, onMessage, onInvalidFrame } = this.options;
    try {
      const bytes = this.unpacker.receive(packet);
      if (bytes) {
        const { kind, header, value } = decodeFrame(bytes, limits);
        this.checkReceiver(kind, header);
        onMessage({ kind, header, from: senderOf(header), bytes: bytes.byteLength, value });
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
    const { limits, onTooLarge, onInvalidFrame } = this.options;
    try {
      const { kind, header } = reading(() => headOf(error.beginning, limits));
      this.checkReceiver(kind, header);
      onTooLarge({ kind, header, from: senderOf(header) }, error);
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
    const { address, transport } = this.options;
    for (const packet of this.packer.pack(frame)) {
      await (to === address ? this.loopBack(packet) : transport.send(to, packet));
    }
  }

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
  private checkReceiver(kind: Kind, { to }: Frame['header']): void {
    if (to !== this.options.address && (to !== undefined || kind < Kind.heartbeat)) {
      throw new FrameError('A frame is for another node');
    }
  }

  private frame(kind: Kind, header: object, value?: EncodedValue): Uint8Array {
    return encodeFrame({ kind, header, value }, this.packer.spare);
  }
}

function senderOf({ from }: Readonly<Record<string, unknown>>): Address {
  if (typeof from !== 'string' || from === '') {
    throw new FrameError('A frame without the address of its sender');
  }
  return from;
}

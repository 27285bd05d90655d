import { FrameError, packetLength, PRELUDE } from '../wire/prelude.js';
import { TextMessage } from './tcp-text-message.js';

/** Where the pieces of a stream of bytes go. */
export interface Pieces {
  /** A piece of Nest's own messages. */
  text(bytes: Buffer): void;
  packet(bytes: Uint8Array): void;
  /** The bytes of the largest packet that is taken now. */
  limit(): number;
  /** The most bytes of Nest's own messages that are taken, in all. */
  readonly mostText: number;
}

/** Tells packets from Nest's own messages on one connection: a packet begins with 0x00, and such a message with its length in digits. */
export class PacketSplitter {
  private readonly message = new TextMessage();
  /** A packet, or as yet its prelude, of which the first `filled` bytes are here. */
  private partial: Buffer | undefined;
  private filled = 0;
  /** Bytes of Nest's own messages that have come. */
  private text = 0;

  constructor(private readonly pieces: Pieces) {}

  /** @throws FrameError after which nothing that comes can be understood */
  push(bytes: Buffer): void {
    for (let rest = bytes; rest.byteLength > 0;) {
      rest = rest.subarray(this.take(rest));
    }
  }

  /** Takes the first piece, and says how long it is. */
  private take(bytes: Buffer): number {
    if (this.partial) {
      return this.fill(this.partial, bytes);
    }
    if (this.message.isOpen || bytes[0] !== 0) {
      const length = this.message.take(bytes);
      this.text += length;
      if (this.text > this.pieces.mostText) {
        throw new FrameError(`More than ${this.pieces.mostText} bytes of text on a connection of nodes`);
      }
      this.pieces.text(bytes.subarray(0, length));
      return length;
    }
    const length = bytes.byteLength < PRELUDE ? PRELUDE : this.lengthOf(bytes);
    if (length > bytes.byteLength) {
      return this.fill(this.begin(length), bytes);
    }
    this.pieces.packet(bytes.subarray(0, length));
    return length;
  }

  private begin(length: number): Buffer {
    this.filled = 0;
    return (this.partial = Buffer.allocUnsafeSlow(length));
  }

  private fill(partial: Buffer, bytes: Buffer): number {
    const taken = bytes.copy(partial, this.filled);
    this.filled += taken;
    if (this.filled === partial.byteLength) {
      this.partial = undefined;
      this.complete(partial);
    }
    return taken;
  }

  private complete(partial: Buffer): void {
    const length = this.lengthOf(partial);
    if (length > partial.byteLength) {
      this.fill(this.begin(length), partial);
    } else {
      this.pieces.packet(partial);
    }
  }

  private lengthOf(bytes: Uint8Array): number {
    const limit = this.pieces.limit();
    const length = packetLength(bytes);
    if (length > limit) {
      throw new FrameError(`A packet of ${length} bytes, where ${limit} are the most`);
    }
    return length;
  }
}

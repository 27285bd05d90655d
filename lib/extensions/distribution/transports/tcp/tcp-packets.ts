import type { Socket } from 'node:net';
import type { Type } from '@nestjs/common';
import { JsonSocket, type TcpSocket } from '@nestjs/microservices';
import { messageOf } from '../../../../doors/text.js';
import { FrameError, packetLength, PRELUDE } from '../../wire/prelude.js';

/**
 * Nest's TCP socket, which also emits packets, as `packet` on the net socket. A packet without a
 * listener closes the connection.
 *
 * @param limit packet bytes
 * @param mostText bytes of all Nest messages
 * @param path Unix socket, instead of a host and port
 */
export function packetSocket(
  limit: number,
  mostText: number,
  options: ConstructorParameters<typeof JsonSocket>[1],
  path?: string,
): Type<TcpSocket & DirectReads> {
  return class PacketSocket extends JsonSocket {
    private readonly splitter = new PacketSplitter({
      text: (bytes) => super.handleData(bytes),
      packet: (bytes) => this.netSocket.emit('packet', bytes),
      limit: () => {
        if (this.netSocket.listenerCount('packet') === 0) {
          throw new FrameError('A packet on a connection that is no link');
        }
        return limit;
      },
      mostText,
    });

    constructor(socket: Socket) {
      super(socket, options);
    }

    override connect(port: number, host: string): this {
      if (path === undefined) {
        return super.connect(port, host);
      }
      this.netSocket.connect(path);
      return this;
    }

    get room(): Buffer | undefined {
      return this.splitter.room;
    }

    wrote(bytes: number): void {
      this.orDestroy(() => this.splitter.wrote(bytes));
    }

    lend(bytes: Buffer): void {
      this.orDestroy(() => this.splitter.lend(bytes));
    }

    protected override handleData(data: Buffer | string): void {
      this.orDestroy(() => this.splitter.push(typeof data === 'string' ? Buffer.from(data) : data));
    }

    private orDestroy(read: () => void): void {
      try {
        read();
      } catch (error) {
        this.netSocket.destroy(error instanceof Error ? error : new Error(messageOf(error)));
      }
    }
  };
}

export interface DirectReads {
  readonly room: Buffer | undefined;
  wrote(bytes: number): void;
  /** The caller will reuse the memory. */
  lend(bytes: Buffer): void;
}

export interface Pieces {
  text(bytes: Buffer): void;
  packet(bytes: Uint8Array): void;
  /** Bytes; may change. */
  limit(): number;
  readonly mostText: number;
}

/** Fewer missing bytes take fewer reads through the shared buffer. */
const LEAST_ROOM = 64 * 1024;

/** Packets begin with 0x00, Nest messages with their length in digits. */
export class PacketSplitter implements DirectReads {
  private readonly message = new TextMessage();
  private partial: Buffer | undefined;
  private filled = 0;
  private text = 0;

  constructor(private readonly pieces: Pieces) {}

  get room(): Buffer | undefined {
    const { partial, filled } = this;
    return partial && partial.byteLength - filled >= LEAST_ROOM
      ? partial.subarray(filled)
      : undefined;
  }

  wrote(bytes: number): void {
    if (this.partial) {
      this.advance(this.partial, bytes);
    }
  }

  lend(bytes: Buffer): void {
    let rest = bytes;
    while (this.partial && rest.byteLength > 0) {
      rest = rest.subarray(this.fill(this.partial, rest));
    }
    // `push` copies an unfinished packet, but not whole ones or text.
    this.push(this.isBegun(rest) ? rest : Buffer.from(rest));
  }

  /** @throws FrameError */
  push(bytes: Buffer): void {
    for (let rest = bytes; rest.byteLength > 0;) {
      rest = rest.subarray(this.take(rest));
    }
  }

  private take(bytes: Buffer): number {
    if (this.partial) {
      return this.fill(this.partial, bytes);
    }
    if (this.message.isOpen || bytes[0] !== 0) {
      const length = this.message.take(bytes);
      this.text += length;
      if (this.text > this.pieces.mostText) {
        throw new FrameError(
          `More than ${this.pieces.mostText} bytes of text on a connection of nodes`,
        );
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

  private isBegun(bytes: Buffer): boolean {
    return (
      !this.message.isOpen &&
      bytes[0] === 0 &&
      bytes.byteLength >= PRELUDE &&
      this.lengthOf(bytes) > bytes.byteLength
    );
  }

  private begin(length: number): Buffer {
    this.filled = 0;
    return (this.partial = Buffer.allocUnsafeSlow(length));
  }

  private fill(partial: Buffer, bytes: Buffer): number {
    const taken = bytes.copy(partial, this.filled);
    this.advance(partial, taken);
    return taken;
  }

  private advance(partial: Buffer, taken: number): void {
    this.filled += taken;
    if (this.filled === partial.byteLength) {
      this.partial = undefined;
      this.complete(partial);
    }
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

const HASH = 0x23;
const MOST_DIGITS = 16;

/** `length#text`: a length in UTF-16 units, and UTF-8 text. */
class TextMessage {
  private digits = '';
  /** Missing UTF-16 units. */
  private units: number | undefined;
  /** Missing bytes of the current character. */
  private rest = 0;

  get isOpen(): boolean {
    return this.units !== undefined || this.digits !== '';
  }

  take(bytes: Buffer): number {
    let at = this.units === undefined ? this.takeLength(bytes) : 0;
    if (this.units === undefined) {
      return at;
    }
    while (at < bytes.byteLength && (this.units > 0 || this.rest > 0)) {
      this.units -= this.unitsOf(bytes[at++]!);
    }
    if (this.units <= 0 && this.rest === 0) {
      this.units = undefined;
      this.digits = '';
    }
    return at;
  }

  private takeLength(bytes: Buffer): number {
    const head = bytes.subarray(0, MOST_DIGITS + 1);
    const end = head.indexOf(HASH);
    this.digits += head.toString('latin1', 0, end === -1 ? head.byteLength : end);
    if (this.digits.length > MOST_DIGITS) {
      throw new FrameError('Neither a packet nor a message begins like this');
    }
    if (end === -1) {
      return head.byteLength;
    }
    // Nest's socket refuses an invalid number.
    this.units = Number.parseInt(this.digits, 10) || 0;
    return end + 1;
  }

  private unitsOf(byte: number): number {
    if (this.rest > 0 && byte >> 6 === 0b10) {
      this.rest--;
      return 0;
    }
    this.rest = byte < 0xc0 ? 0 : byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
    return byte < 0xf0 ? 1 : 2;
  }
}

import { TcpSocket } from '@nestjs/microservices';

/** What Nest hands over: a question with `data`, or an answer with `response`. */
interface Message {
  readonly id: string;
  readonly data?: Uint8Array;
  readonly response?: Uint8Array;
}

/**
 * Nest's TCP transport with messages of bytes: u32 length of what follows, u8 length of the id, the
 * id, and the data; all are for one handler.
 */
export class BinarySocket extends TcpSocket {
  private chunks: Buffer[] = [];
  private buffered = 0;
  private needed = 4;

  protected override handleSend({ id, data, response }: Message): void {
    const bytes = data ?? response ?? new Uint8Array(0);
    const head = Buffer.allocUnsafe(5 + id.length);
    head.writeUInt32LE(1 + id.length + bytes.byteLength);
    head.writeUInt8(id.length, 4);
    head.write(id, 5, 'latin1');
    this.netSocket.cork();
    this.netSocket.write(head);
    this.netSocket.write(bytes);
    this.netSocket.uncork();
  }

  protected override handleData(data: Buffer): void {
    this.chunks.push(data);
    this.buffered += data.length;
    if (this.buffered < this.needed) {
      return;
    }
    let rest = this.chunks.length === 1 ? data : Buffer.concat(this.chunks);
    while (rest.length >= (this.needed = needOf(rest))) {
      this.receive(rest.subarray(4, this.needed));
      rest = rest.subarray(this.needed);
    }
    this.chunks = [rest];
    this.buffered = rest.length;
  }

  private receive(message: Buffer): void {
    const start = 1 + message.readUInt8();
    const data = message.subarray(start);
    this.netSocket.emit('message', {
      id: message.toString('latin1', 1, start),
      pattern: 'echo',
      data,
      response: data,
      isDisposed: true,
    });
  }
}

/** The bytes of the first message, or of its length. */
function needOf(bytes: Buffer): number {
  return bytes.length < 4 ? 4 : 4 + bytes.readUInt32LE();
}

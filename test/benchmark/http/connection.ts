import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import type { Post } from './post.js';

const endOfHead = '\r\n\r\n';
/** The first digit of the status of a good response, after `HTTP/1.1 `. */
const success = '2'.charCodeAt(0);

/**
 * A keep-alive HTTP connection that posts the same body again and again. A general client costs as
 * much as the server it would measure, and on a small machine takes that time from it.
 */
export class Connection {
  private readonly request: Buffer;
  private bytesLeft = 0;
  private lastLength = 0;
  private answered: (() => void) | undefined;
  private failed: ((error: Error) => void) | undefined;

  private constructor(
    private readonly socket: Socket,
    { path, type, body }: Post,
  ) {
    const head = `POST ${path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: ${type}\r\nContent-Length: ${body.length}`;
    this.request = Buffer.concat([Buffer.from(head + endOfHead), body]);
    socket.on('data', (chunk) => this.receive(chunk)).on('error', (error) => this.failed?.(error));
  }

  /**
   * Answered once already: a server that is busy accepts few connections at a time, which is not
   * what is measured.
   */
  static async open(port: number, post: Post): Promise<Connection> {
    const socket = connect({ port, host: '127.0.0.1', noDelay: true });
    await once(socket, 'connect');
    const connection = new Connection(socket, post);
    await connection.send();
    return connection;
  }

  /** Resolves once the whole response is here. One request at a time. */
  send(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.answered = resolve;
      this.failed = reject;
      this.socket.write(this.request);
    });
  }

  private receive(chunk: Buffer): void {
    if (this.bytesLeft === 0) {
      // Nearly all responses are as long as the last. To read their heads would cost the server's time.
      const isLikeLast = chunk.length === this.lastLength && chunk[9] === success;
      this.bytesLeft = isLikeLast ? chunk.length : this.responseLength(chunk);
      this.lastLength = this.bytesLeft;
    }
    this.bytesLeft -= chunk.length;
    if (this.bytesLeft === 0) {
      this.answered?.();
    }
  }

  private responseLength(chunk: Buffer): number {
    const head = chunk.toString('latin1', 0, chunk.indexOf(endOfHead));
    const bodyLength = /^HTTP\/1\.1 20[01] .*\r\ncontent-length: (\d+)/is.exec(head)?.[1];
    if (!bodyLength) {
      this.failed?.(new Error(`not a good response: ${head}`));
    }
    return head.length + endOfHead.length + Number(bodyLength);
  }
}

import { EventEmitter, once } from 'node:events';
import type { Duplex } from 'node:stream';

import { HANDSHAKE_BYTES } from '../handshake.js';

/** A message of `Link`: exactly one of the fields is set. */
export interface GrpcMessage {
  readonly frame?: Uint8Array;
  readonly text?: string;
}

/** A call of `Link`, on either side. */
export interface GrpcCall extends Duplex {
  /** Only the client side can cancel. */
  cancel?(): void;
}

/** The gRPC codes for an intended end, and for a violation by the other side. */
export const CANCELLED = 1;
export const INVALID_ARGUMENT = 3;

/**
 * A call of `Link` as a connection of two nodes: packets are events `packet`, everything else is
 * `text`. A packet without a listener ends the connection.
 */
export class GrpcConnection extends EventEmitter {
  /** Resolves when the connection is closed. */
  readonly closed: Promise<void>;
  /** The reason for its end, if known. */
  failure: unknown;
  /** The bytes of unsent packets. */
  unsent = 0;
  /** The characters of received text. */
  private text = 0;
  private room: Promise<void> | undefined;

  /** @param cut ends the connection below the call; needed on the server side */
  constructor(
    private readonly call: GrpcCall,
    private readonly cut?: () => void,
  ) {
    super();
    call.on('data', (message: GrpcMessage) => this.take(message));
    call.on('error', (error) => (this.failure ??= error));
    call.once('end', () => call.end());
    this.closed = new Promise((resolve) => {
      ['end', 'error', 'cancelled', 'close'].forEach((event) => call.once(event, () => resolve()));
    });
  }

  /** Sends a request to the other end; resolves with the answer. */
  async ask(pattern: string, data: object): Promise<unknown> {
    const answer = once(this, 'text');
    this.say({ pattern, data });
    const end = this.closed.then(() =>
      Promise.reject(this.failure ?? new Error('Connection closed')),
    );
    const [text]: string[] = await Promise.race([answer, end]);
    return JSON.parse(text ?? '');
  }

  say(value: unknown): void {
    if (this.call.writable) {
      this.call.write({ text: JSON.stringify(value) });
    }
  }

  /** Resolves when there is room for more, or it has ended. */
  send(packet: Uint8Array): void | Promise<void> {
    if (!this.call.writable) {
      return;
    }
    this.unsent += packet.byteLength;
    const hasRoom = this.call.write({ frame: packet }, () => (this.unsent -= packet.byteLength));
    if (!hasRoom) {
      return (this.room ??= this.drained());
    }
  }

  /** Ends it after everything was sent; resolves when the other end has noticed. */
  async end(): Promise<void> {
    this.call.end();
    await this.closed;
  }

  /** Ends it with a reason. */
  destroy(message = 'The connection is not needed', code = CANCELLED): void {
    if (this.call.cancel) {
      this.call.cancel();
    } else if (!this.call.destroyed) {
      this.call.emit('error', Object.assign(new Error(message), { code, details: message }));
    }
    if (this.unsent > 0) {
      // The status would wait behind unread data.
      this.cut?.();
    }
  }

  private async drained(): Promise<void> {
    const drain = new Promise((resolve) => this.call.once('drain', resolve));
    await Promise.race([drain, this.closed]);
    this.room = undefined;
  }

  private take({ frame, text }: GrpcMessage): void {
    if (text !== undefined) {
      this.text += text.length;
      if (this.text > HANDSHAKE_BYTES) {
        this.refuse(`More than ${HANDSHAKE_BYTES} characters of text on a connection of nodes`);
      } else {
        this.emit('text', text);
      }
    } else if (frame && !this.emit('packet', frame)) {
      this.refuse('A packet on a connection that is no link');
    }
  }

  private refuse(message: string): void {
    this.failure ??= new Error(message);
    this.destroy(message, INVALID_ARGUMENT);
  }
}

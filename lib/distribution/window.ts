import { type Header, wholeIn } from './header.js';

/** How much may be on its way before the other side has taken some of it. */
export interface WindowLimits {
  readonly messages: number;
  readonly bytes: number;
}

/**
 * The window for sending: what the receiver grants in the header, capped by the sender's own.
 *
 * @throws FrameError for a grant that is malformed
 */
export function grantedWindow(header: Header, own: WindowLimits): WindowLimits {
  const { window } = header;
  if (window === undefined) {
    return own;
  }
  const grant: Header = Object(window);
  return {
    messages: Math.min(own.messages, wholeIn(grant, 'messages')),
    bytes: Math.min(own.bytes, wholeIn(grant, 'bytes')),
  };
}

/** Whether a sender must wait. One message may always be on its way, however large it is. */
export function isFull(messages: number, bytes: number, window: WindowLimits): boolean {
  return messages >= window.messages || (messages > 0 && bytes >= window.bytes);
}

/** The sending end of a sequence of messages: lets no more of them leave than the other side has room for. */
export class Window {
  /** The bytes of those on their way, the oldest first; no more than a window of them. */
  private readonly underWay: number[] = [];
  private bytes = 0;
  private taken = 0;
  /** How many the other side says that it has taken. */
  private credited = 0;
  private isClosed = false;
  private wake = (): void => {};

  constructor(private readonly limits: WindowLimits) {}

  /** How many have left. */
  get sent(): number {
    return this.taken + this.underWay.length;
  }

  /** Resolves with true when another message may leave; with false when none may any more. */
  async room(): Promise<boolean> {
    while (!this.isClosed && isFull(this.underWay.length, this.bytes, this.limits)) {
      await new Promise<void>((resolve) => (this.wake = resolve));
    }
    return !this.isClosed;
  }

  /** A message of so many bytes has left. */
  add(bytes: number): void {
    this.underWay.push(bytes);
    this.bytes += bytes;
    this.release();
  }

  /** The other side has taken so many, from the first one on. */
  take(count: number): void {
    // The credit for a message can come before `add`: sending it may take until the other side has read it.
    this.credited = Math.min(count, this.sent + 1);
    this.release();
    this.wake();
  }

  /** Nothing more is to leave. */
  close(): void {
    this.isClosed = true;
    this.wake();
  }

  private release(): void {
    while (this.taken < this.credited && this.underWay.length > 0) {
      this.taken++;
      this.bytes -= this.underWay.shift()!;
    }
  }
}

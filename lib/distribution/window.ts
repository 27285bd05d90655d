/** How much may be on its way before the other side has taken some of it. */
export interface WindowLimits {
  readonly messages: number;
  readonly bytes: number;
}

/** The sending end of a sequence of messages: lets no more of them leave than the other side has room for. */
export class Window {
  /** The bytes of those on their way, the oldest first; no more than a window of them. */
  private readonly underWay: number[] = [];
  private bytes = 0;
  private taken = 0;
  private isClosed = false;
  private wake = (): void => {};

  constructor(private readonly limits: WindowLimits) {}

  /** How many have left. */
  get sent(): number {
    return this.taken + this.underWay.length;
  }

  /** Resolves with true when another message may leave; with false when none may any more. */
  async room(): Promise<boolean> {
    while (!this.isClosed && this.isFull) {
      await new Promise<void>((resolve) => (this.wake = resolve));
    }
    return !this.isClosed;
  }

  /** A message of so many bytes has left. */
  add(bytes: number): void {
    this.underWay.push(bytes);
    this.bytes += bytes;
  }

  /** The other side has taken so many, from the first one on. */
  take(count: number): void {
    while (this.taken < count && this.underWay.length > 0) {
      this.taken++;
      this.bytes -= this.underWay.shift()!;
    }
    this.wake();
  }

  /** Nothing more is to leave. */
  close(): void {
    this.isClosed = true;
    this.wake();
  }

  /** One message may always be on its way, however large it is. */
  private get isFull(): boolean {
    const { messages, bytes } = this.limits;
    return this.underWay.length >= messages || (this.underWay.length > 0 && this.bytes >= bytes);
  }
}

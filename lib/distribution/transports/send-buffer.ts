/** Send buffer limit in bytes. Beyond it the peer counts as stalled. */
export const SEND_BUFFER_LIMIT = 128 * 1024 * 1024;

/**
 * The bytes that were given to a server and that it may not have read: they wait in the memory of
 * this process.
 */
export class SendBuffer {
  private bytes = 0;

  constructor(private readonly server: string) {}

  /** @throws Error when the bytes would exceed the limit; they must not be sent then */
  add(bytes: number): void {
    if (this.bytes + bytes > SEND_BUFFER_LIMIT) {
      throw new Error(`The ${this.server} server does not read: ${this.bytes} bytes wait for it`);
    }
    this.bytes += bytes;
  }

  /** Bytes that the server has read, or never will. */
  remove(bytes: number): void {
    this.bytes -= bytes;
  }
}

/** Send buffer limit in bytes. Beyond it the peer counts as stalled. */
export const SEND_BUFFER_LIMIT = 128 * 1024 * 1024;

/** Bytes in this process that a server may not have read. */
export class SendBuffer {
  private bytes = 0;

  constructor(private readonly server: string) {}

  /** @throws Error beyond the limit; don't send then */
  add(bytes: number): void {
    if (this.bytes + bytes > SEND_BUFFER_LIMIT) {
      throw new Error(`The ${this.server} server does not read: ${this.bytes} bytes wait for it`);
    }
    this.bytes += bytes;
  }

  /** Call this when the server has read the bytes, or never will. */
  remove(bytes: number): void {
    this.bytes -= bytes;
  }
}

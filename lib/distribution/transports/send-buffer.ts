/** Who has not read this much, in bytes, does not read. */
export const SEND_BUFFER_LIMIT = 128 * 1024 * 1024;

/**
 * What was given to a server that may not have read it yet. It waits in the memory of this process.
 */
export class SendBuffer {
  private bytes = 0;

  constructor(private readonly server: string) {}

  /** @throws Error when that would be too much: then it must not be given to the server */
  add(bytes: number): void {
    if (this.bytes + bytes > SEND_BUFFER_LIMIT) {
      throw new Error(`The ${this.server} server does not read: ${this.bytes} bytes wait for it`);
    }
    this.bytes += bytes;
  }

  /** The server has read so many, or never will. */
  remove(bytes: number): void {
    this.bytes -= bytes;
  }
}

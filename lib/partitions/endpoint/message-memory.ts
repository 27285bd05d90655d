/** Bytes of a message whose memory is kept for the next one. */
const LARGEST_KEPT = 16 * 2 ** 20;

/** Memory for one message at a time: new memory for each would cost as much as the copy into it. */
export class MessageMemory {
  private spare: Buffer | undefined;

  /** Memory for a message of that length. */
  take(length: number): Buffer {
    const { spare } = this;
    this.spare = undefined;
    return spare && spare.length >= length
      ? spare.subarray(0, length)
      : Buffer.allocUnsafeSlow(length);
  }

  /** Takes back the memory of a message that nobody reads any more. */
  give(message: Buffer): void {
    if (message.buffer.byteLength <= LARGEST_KEPT) {
      this.spare = Buffer.from(message.buffer);
    }
  }
}

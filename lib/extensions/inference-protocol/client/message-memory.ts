import { TooLargeToSendError } from '../../../internal.js';

/** Largest gRPC message in bytes: its length has 4 bytes. */
const LARGEST = 2 ** 32 - 1;

/** Largest message in bytes whose memory is kept. */
const LARGEST_KEPT = 16 * 2 ** 20;

/**
 * Reuses messages' memory. Allocating costs more than the copy into it: Node collects its whole
 * heap for about every 30 MB of buffers.
 */
export class MessageMemory {
  private spare: Buffer | undefined;

  /** @throws TooLargeToSendError */
  take(length: number): Buffer {
    if (length > LARGEST) {
      throw new TooLargeToSendError(
        `The rows take ${length} bytes in a gRPC message, which has at most ${LARGEST}; ` +
          'give fewer or smaller rows, or lower batchSize',
      );
    }
    const { spare } = this;
    this.spare = undefined;
    return spare && spare.length >= length
      ? spare.subarray(0, length)
      : Buffer.allocUnsafeSlow(length);
  }

  /** Call this when nothing reads the message any more. */
  give(message: Buffer): void {
    if (message.buffer.byteLength <= LARGEST_KEPT) {
      this.spare = Buffer.from(message.buffer);
    }
  }
}

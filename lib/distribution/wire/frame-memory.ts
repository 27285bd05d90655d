/** The bytes of a slab, and of the largest frame that gets a part of one. */
const SLAB = 64 * 1024;
const LARGEST = 16 * 1024;

/**
 * Memory for frames to send. Small frames lie one after the other in slabs: each allocation beyond
 * Node's own pool costs more than writing such a frame.
 */
export class FrameMemory {
  private slab = Buffer.alloc(0);
  private used = 0;

  /** Returns uninitialised memory. */
  readonly take = (length: number): Buffer => {
    if (length > LARGEST) {
      return Buffer.allocUnsafeSlow(length);
    }
    if (this.used + length > this.slab.byteLength) {
      this.slab = Buffer.allocUnsafeSlow(SLAB);
      this.used = 0;
    }
    return this.slab.subarray(this.used, (this.used += length));
  };
}

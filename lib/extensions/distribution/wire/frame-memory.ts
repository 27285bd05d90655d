/** Bytes of a slab, and of the largest frame in one. */
const SLAB = 64 * 1024;
const SMALL = 16 * 1024;
/** Bytes of the largest frame whose memory is reused. */
const LARGE = 1024 * 1024;
/** Block sizes are multiples of this many bytes, so that similar frames share blocks. */
const STEP = 64 * 1024;
/** Limit in bytes of free blocks. */
const MOST_KEPT = 8 * 1024 * 1024;

/**
 * Memory for frames to send. Small frames share slabs, since an allocation costs more than writing
 * one. Large frames reuse blocks: the more memory we allocate outside the heap, the more often the
 * garbage collector runs over all of it.
 */
export class FrameMemory {
  private slab = Buffer.alloc(0);
  private used = 0;
  /** Free blocks, by size. */
  private readonly blocks = new Map<number, ArrayBufferLike[]>();
  private kept = 0;

  /** Returns uninitialised memory. */
  readonly take = (length: number): Buffer => {
    if (length > LARGE) {
      return Buffer.allocUnsafeSlow(length);
    }
    if (length > SMALL) {
      return Buffer.from(this.block(Math.ceil(length / STEP) * STEP), 0, length);
    }
    if (this.used + length > this.slab.byteLength) {
      this.slab = Buffer.allocUnsafeSlow(SLAB);
      this.used = 0;
    }
    return this.slab.subarray(this.used, (this.used += length));
  };

  /** Takes back a frame's memory, which nothing reads any more. */
  give({ buffer, byteLength }: Uint8Array): void {
    const size = buffer.byteLength;
    if (byteLength > SMALL && byteLength <= LARGE && this.kept + size <= MOST_KEPT) {
      this.kept += size;
      const blocks = this.blocks.get(size);
      if (blocks) {
        blocks.push(buffer);
      } else {
        this.blocks.set(size, [buffer]);
      }
    }
  }

  private block(size: number): ArrayBufferLike {
    const block = this.blocks.get(size)?.pop();
    if (!block) {
      return Buffer.allocUnsafeSlow(size).buffer;
    }
    this.kept -= size;
    return block;
  }
}

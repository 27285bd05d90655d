/**
 * Whether a batch begins, decided between the thread that would run it and the one that has handed it over: what has been taken back never
 * begins, and what has begun is never taken back. It counts the batches that have passed, in memory that both share.
 */
export class Turnstile {
  private readonly passed: Int32Array;

  constructor(readonly memory = new SharedArrayBuffer(Int32Array.BYTES_PER_ELEMENT)) {
    this.passed = new Int32Array(memory);
  }

  /** In the thread, for each batch in turn, counted from 0: whether it may begin. */
  lets(batch: number): boolean {
    // The count has 32 bits, and starts over.
    return Atomics.compareExchange(this.passed, 0, batch, batch + 1) === (batch | 0);
  }

  /** On the other side: takes back what has not begun of so many batches handed over until now; says how many that are. */
  takeBack(handed: number): number {
    return (handed - Atomics.exchange(this.passed, 0, handed)) | 0;
  }
}

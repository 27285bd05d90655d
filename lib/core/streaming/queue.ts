/** Serves one consumer, which waits while it is empty. */
export class Queue<T> implements AsyncIterator<T, undefined> {
  private values: T[] = [];
  private first = 0;
  private takers: {
    readonly resolve: (result: IteratorResult<T, undefined>) => void;
    readonly reject: (error: unknown) => void;
  }[] = [];
  private ending: { readonly error?: unknown } | undefined;

  get size(): number {
    return this.values.length - this.first;
  }

  push(value: T): void {
    if (this.ending) {
      return;
    }
    const taker = this.takers.shift();
    if (taker) {
      taker.resolve({ done: false, value });
    } else {
      this.values.push(value);
    }
  }

  /** Values can still be taken. */
  end(): void {
    this.close({});
  }

  fail(error: unknown): void {
    this.close({ error });
  }

  next(): Promise<IteratorResult<T, undefined>> {
    if (this.size > 0) {
      return Promise.resolve({ done: false, value: this.take() });
    }
    if (this.ending) {
      return 'error' in this.ending
        ? Promise.reject(this.ending.error)
        : Promise.resolve({ done: true, value: undefined });
    }
    return new Promise((resolve, reject) => this.takers.push({ resolve, reject }));
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  private take(): T {
    const value = this.values[this.first]!;
    this.values[this.first++] = undefined as T;
    // Amortised constant time.
    if (this.first * 2 > this.values.length) {
      this.values.splice(0, this.first);
      this.first = 0;
    }
    return value;
  }

  private close(ending: { readonly error?: unknown }): void {
    if (this.ending) {
      return;
    }
    this.ending = ending;
    for (const { resolve, reject } of this.takers.splice(0)) {
      if ('error' in ending) {
        reject(ending.error);
      } else {
        resolve({ done: true, value: undefined });
      }
    }
  }
}

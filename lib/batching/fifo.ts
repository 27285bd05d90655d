/** A first-in, first-out queue. All operations take constant time. */
export class Fifo<T> {
  private items: (T | undefined)[] = [];
  private first = 0;

  get length(): number {
    return this.items.length - this.first;
  }

  push(item: T): void {
    this.items.push(item);
  }

  peek(): T | undefined {
    return this.items[this.first];
  }

  shift(): T | undefined {
    const item = this.items[this.first];
    this.items[this.first++] = undefined;
    // Compacts when more than half is stale: amortised constant time.
    if (this.first * 2 > this.items.length) {
      this.items.splice(0, this.first);
      this.first = 0;
    }
    return item;
  }

  peekLast(): T | undefined {
    return this.items.at(-1);
  }

  /** Replaces the next item. */
  replace(item: T): void {
    this.items[this.first] = item;
  }

  some(isOne: (item: T) => boolean): boolean {
    for (let index = this.first; index < this.items.length; index++) {
      if (isOne(this.items[index]!)) {
        return true;
      }
    }
    return false;
  }

  /** Replaces the last item. */
  replaceLast(item: T): void {
    this.items[this.items.length - 1] = item;
  }

  keep(isKept: (item: T) => boolean): void {
    this.items = this.items.slice(this.first).filter((item) => isKept(item!));
    this.first = 0;
  }

  [Symbol.iterator](): Iterator<T> {
    return (this.items.slice(this.first) as T[])[Symbol.iterator]();
  }
}

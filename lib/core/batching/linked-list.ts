/** An item of a list, which knows its neighbours. */
export interface Linked<T> {
  before: T | undefined;
  after: T | undefined;
}

/**
 * A doubly linked list of items that are in one list at a time. Every operation takes constant
 * time.
 */
export class LinkedList<T extends Linked<T>> {
  first: T | undefined;
  last: T | undefined;

  push(item: T): void {
    item.before = this.last;
    item.after = undefined;
    if (this.last) {
      this.last.after = item;
    } else {
      this.first = item;
    }
    this.last = item;
  }

  /** Removes an item, which must be in the list. */
  remove(item: T): void {
    const { before, after } = item;
    // An item that has aged would else keep all items behind it in memory until a full collection.
    item.before = undefined;
    item.after = undefined;
    if (before) {
      before.after = after;
    } else {
      this.first = after;
    }
    if (after) {
      after.before = before;
    } else {
      this.last = before;
    }
  }

  *[Symbol.iterator](): Generator<T> {
    for (let item = this.first; item; item = item.after) {
      yield item;
    }
  }
}

import { Heap } from 'heap-js';
import type { Part, QueuedRequest } from './queued-request.js';

/** The rows of one tenant, in the order of their arrival. */
interface Flow<R extends QueuedRequest> {
  readonly tenant: string;
  readonly weight: number;
  /** The rows it has had, divided by its weight. The flow with the lowest value is next. */
  pass: number;
  /** Breaks ties between flows of equal `pass`: the one that had rows first is next. */
  turn: number;
  readonly parts: Fifo<Part<R>>;
}

/**
 * Rows of one priority, shared between tenants by their weights, however many rows each of them
 * queues.
 *
 * Start-time fair queueing (Goyal, Vin and Cheng, 1996): a tenant that joins starts at the current
 * `pass` of the others, so it gains nothing from the time in which it queued no rows. Every
 * operation takes constant time per row, and time logarithmic in the number of tenants.
 */
export class FairQueue<R extends QueuedRequest> {
  private readonly flows = new Map<string, Flow<R>>();
  private readonly next = new Heap<Flow<R>>(byPass);
  private pass = 0;
  private turn = 0;

  constructor(private readonly weights: ReadonlyMap<string, number>) {}

  /** Adds a part. The parts of one request arrive in order. */
  add(part: Part<R>): void {
    const { tenant } = part.request;
    // Most queues have one flow.
    const next = this.next.peek();
    let flow = next?.tenant === tenant ? next : this.flows.get(tenant);
    if (!flow) {
      flow = {
        tenant,
        weight: this.weights.get(tenant) ?? 1,
        pass: this.pass,
        turn: this.turn++,
        parts: new Fifo(),
      };
      this.flows.set(tenant, flow);
      this.next.add(flow);
    }
    const last = flow.parts.peekLast();
    if (last?.request === part.request) {
      // Consecutive parts of a request become one, so that no rows of other tenants come between:
      // the request may have to run whole.
      flow.parts.replaceLast({ ...last, count: last.count + part.count });
    } else {
      flow.parts.push(part);
    }
  }

  /** The next part that a caller still waits for. */
  peek(now: number): Part<R> | undefined {
    const flow = this.nextFlow(now);
    return flow?.parts.peek();
  }

  /**
   * Takes the next rows, as many as there is room for. A request that must run whole is taken whole
   * or not at all.
   */
  take(room: number, now: number): Part<R> | undefined {
    const flow = this.nextFlow(now);
    const part = flow?.parts.peek();
    if (!flow || !part) {
      return undefined;
    }
    const { request, offset } = part;
    if (request.whole && request.size > room) {
      return undefined;
    }
    const isWhole = part.count <= room;
    const count = isWhole ? part.count : room;
    if (isWhole) {
      flow.parts.shift();
    } else {
      flow.parts.replace({ request, offset: offset + count, count: part.count - count });
    }
    this.pass = flow.pass;
    flow.pass += count / flow.weight;
    flow.turn = this.turn++;
    if (this.next.length > 1) {
      this.next.pop();
      this.next.add(flow);
    }
    return isWhole ? part : { request, offset, count };
  }

  /** Whether a row has a deadline later than this time. */
  hasRowsAfter(time: number): boolean {
    for (const { parts } of this.flows.values()) {
      if (parts.some(({ request }) => !request.isOver && request.deadline > time)) {
        return true;
      }
    }
    return false;
  }

  /** Removes the rows whose callers have left. */
  sweep(): void {
    for (const { tenant, parts } of this.flows.values()) {
      parts.keep(({ request }) => !request.isOver);
      if (parts.length === 0) {
        this.flows.delete(tenant);
      }
    }
    this.next.init([...this.flows.values()]);
  }

  *[Symbol.iterator](): Generator<Part<R>> {
    for (const { parts } of this.flows.values()) {
      yield* parts;
    }
  }

  /**
   * The flow whose turn it is. Flows without rows are removed, except the last one, which is likely
   * to get rows again.
   */
  private nextFlow(now: number): Flow<R> | undefined {
    for (let flow = this.next.peek(); flow; flow = this.next.peek()) {
      const hasNext = hasRows(flow.parts, now);
      // The flow may have been removed when its rows expired.
      if (flow !== this.next.peek()) {
        continue;
      }
      if (hasNext) {
        return flow;
      }
      // This flow has the lowest `pass`: flows that join, also this one, start from here.
      this.pass = flow.pass;
      if (this.next.length === 1) {
        return undefined;
      }
      this.next.pop();
      this.flows.delete(flow.tenant);
    }
    return undefined;
  }
}

function byPass(a: Flow<QueuedRequest>, b: Flow<QueuedRequest>): number {
  return a.pass - b.pass || a.turn - b.turn;
}

/** Whether the flow has rows that a caller waits for. Rows before them are removed. */
function hasRows<R extends QueuedRequest>(parts: Fifo<Part<R>>, now: number): boolean {
  for (let part = parts.peek(); part; part = parts.peek()) {
    const { request } = part;
    if (!request.isOver && request.deadline > now) {
      return true;
    }
    // Removed before the request is notified, since that may call back into this queue.
    parts.shift();
    if (!request.isOver) {
      request.expire();
    }
  }
  return false;
}

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

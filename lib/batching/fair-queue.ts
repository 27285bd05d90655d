import TinyQueue from 'tinyqueue';
import { Fifo } from './fifo.js';
import type { Part, QueuedRequest } from './queued-request.js';

/** The rows of one tenant, first come, first served. */
interface Flow<R extends QueuedRequest> {
  readonly tenant: string;
  readonly weight: number;
  /** The rows that it has had, by weight: who has had least is next. */
  pass: number;
  /** Of those who have had equally much, who came or had rows first is next. */
  turn: number;
  readonly parts: Fifo<Part<R>>;
}

/**
 * Rows of one priority, of which every tenant gets a share by its weight, however many it brings.
 *
 * Start-time fair queueing (Goyal, Vin and Cheng, 1996): who comes starts where the others are by
 * now, and so is owed nothing for the time in which it asked for nothing. Every operation takes
 * constant time per row, and the logarithm of the tenants.
 */
export class FairQueue<R extends QueuedRequest> {
  private readonly flows = new Map<string, Flow<R>>();
  private next = new TinyQueue<Flow<R>>([], byPass);
  private pass = 0;
  private turn = 0;

  constructor(private readonly weights: ReadonlyMap<string, number>) {}

  /** Those of one request come in their order. */
  add(part: Part<R>): void {
    const { tenant } = part.request;
    // Most often there is but one.
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
      this.next.push(flow);
    }
    const last = flow.parts.peekLast();
    if (last?.request === part.request) {
      // As one, between whose rows those of no other tenant can come: they may have to run whole.
      flow.parts.replaceLast({ ...last, count: last.count + part.count });
    } else {
      flow.parts.push(part);
    }
  }

  /** The rows that are next, of those for which somebody waits. */
  peek(now: number): Part<R> | undefined {
    const flow = this.nextFlow(now);
    return flow?.parts.peek();
  }

  /**
   * Takes the rows that are next, as many as there is room for; of a request that must run whole,
   * all of them or nothing.
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
    const count = Math.min(part.count, room);
    if (count === part.count) {
      flow.parts.shift();
    } else {
      flow.parts.replace({ request, offset: offset + count, count: part.count - count });
    }
    this.pass = flow.pass;
    flow.pass += count / flow.weight;
    flow.turn = this.turn++;
    this.next.pop();
    this.next.push(flow);
    return { request, offset, count };
  }

  /** Whether somebody waits for one of the rows longer than until then. */
  hasRowsAfter(time: number): boolean {
    for (const { parts } of this.flows.values()) {
      if (parts.some(({ request }) => !request.isOver && request.deadline > time)) {
        return true;
      }
    }
    return false;
  }

  /** Forgets the rows for which nobody waits. */
  sweep(): void {
    for (const { tenant, parts } of this.flows.values()) {
      parts.keep(({ request }) => !request.isOver);
      if (parts.length === 0) {
        this.flows.delete(tenant);
      }
    }
    this.next = new TinyQueue([...this.flows.values()], byPass);
  }

  *[Symbol.iterator](): Generator<Part<R>> {
    for (const { parts } of this.flows.values()) {
      yield* parts;
    }
  }

  /**
   * The flow whose turn it is; flows without rows are forgotten, but for the last, which is there
   * again soon.
   */
  private nextFlow(now: number): Flow<R> | undefined {
    for (let flow = this.next.peek(); flow; flow = this.next.peek()) {
      const hasNext = hasRows(flow.parts, now);
      // Where rows have expired, it may have been swept.
      if (flow !== this.next.peek()) {
        continue;
      }
      if (hasNext) {
        return flow;
      }
      // Nobody has had less, so whoever comes starts here, also if it is the same again.
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

/** Whether there are rows for which somebody waits; those before them are forgotten. */
function hasRows<R extends QueuedRequest>(parts: Fifo<Part<R>>, now: number): boolean {
  for (let part = parts.peek(); part; part = parts.peek()) {
    const { request } = part;
    if (!request.isOver && request.deadline > now) {
      return true;
    }
    // Before its request is told, which may call back and have the queue swept.
    parts.shift();
    if (!request.isOver) {
      request.expire();
    }
  }
  return false;
}

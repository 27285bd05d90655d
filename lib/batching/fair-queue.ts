import TinyQueue from 'tinyqueue';
import { Fifo } from './fifo.js';
import { isWanted, type Part, type Request } from './request.js';

/** The rows of one tenant, first come, first served. */
interface Flow<R extends Request> {
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
 * Start-time fair queueing (Goyal, Vin and Cheng, 1996): who comes starts where the others are by now, and so is owed nothing for the
 * time in which it asked for nothing. Every operation takes constant time per row, and the logarithm of the tenants.
 */
export class FairQueue<R extends Request> {
  private readonly flows = new Map<string, Flow<R>>();
  private next = new TinyQueue<Flow<R>>([], byPass);
  private pass = 0;
  private turn = 0;

  constructor(private readonly weights: ReadonlyMap<string, number>) {}

  add(part: Part<R>): void {
    const { tenant } = part.request;
    let flow = this.flows.get(tenant);
    if (!flow) {
      flow = { tenant, weight: this.weights.get(tenant) ?? 1, pass: this.pass, turn: this.turn++, parts: new Fifo() };
      this.flows.set(tenant, flow);
      this.next.push(flow);
    }
    const last = flow.parts.peekLast();
    if (last?.request === part.request && last.offset + last.count === part.offset) {
      // As one, between whose rows those of no other tenant can come: they may have to run whole.
      flow.parts.replaceLast({ ...last, count: last.count + part.count });
    } else {
      flow.parts.push(part);
    }
  }

  /** The rows that are next, without those for which nobody waits. */
  peek(now: number): Part<R> | undefined {
    for (let flow = this.next.peek(); flow; flow = this.next.peek()) {
      const part = nextLive(flow.parts, now);
      // Where rows have expired, it may have been swept.
      if (flow !== this.next.peek()) {
        continue;
      }
      if (part) {
        return part;
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

  /** Takes as many as there is room for of the rows that `peek` gave; of a request that must run whole, all of them or nothing. */
  take(room: number): Part<R> | undefined {
    const flow = this.next.peek()!;
    const part = flow.parts.peek()!;
    const { request, offset } = part;
    if (request.whole && request.size - offset > room) {
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
    if (this.next.length > 1) {
      this.next.pop();
      this.next.push(flow);
    }
    return count === part.count ? part : { request, offset, count };
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
}

function byPass(a: Flow<Request>, b: Flow<Request>): number {
  return a.pass - b.pass || a.turn - b.turn;
}

function nextLive<R extends Request>(parts: Fifo<Part<R>>, now: number): Part<R> | undefined {
  for (let part = parts.peek(); part; part = parts.peek()) {
    if (isWanted(part.request, now)) {
      return part;
    }
    // Where it has expired, it may have been swept.
    if (parts.peek() === part) {
      parts.shift();
    }
  }
  return undefined;
}

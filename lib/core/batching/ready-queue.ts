import type { CallingBatch } from '../context/call-cycles.js';
import { Heap } from 'heap-js';
import type { Budget } from './fill.js';
import {
  isWanted,
  type Lane,
  type Limits,
  type Part,
  type QueuedRequest,
  sizeOf,
} from './queued-request.js';
import { type QueueOrder, RowQueue, turnOf } from './row-queue.js';

/** Reason a window closed or a batch was taken. */
export type CloseReason =
  'full' | 'cost' | 'timeout' | 'idle' | 'flush' | 'drain' | 'retry' | 'inline' | 'target' | 'join';

export interface Window<R extends QueuedRequest> {
  readonly lane: Lane;
  /** Changes only between being taken and the turn's end. */
  parts: readonly Part<R>[];
  readonly size: number;
  readonly reason: CloseReason;
  readonly retryState?: unknown;
  /** Set once its function runs, if this can call servings. */
  caller?: CallingBatch;
}

/** Place for one of a lane's batches. */
interface BatchSlot<R extends QueuedRequest> {
  readonly queue: LaneQueue<R>;
  readonly size: number;
  room: number;
  reason: CloseReason;
  readonly priority: number;
  /** Time when it became ready, less a head start by priority. The lowest is next. */
  readonly turn: number;
  readonly id: number;
  /** Created for its priority's rows; void once they have run. */
  readonly isExpress?: boolean;
  readonly again?: Pick<Window<R>, 'parts' | 'retryState'>;
}

interface LaneQueue<R extends QueuedRequest> {
  readonly lane: Lane;
  readonly rows: RowQueue<R>;
  /** True if the lane has an open window, whose rows go before later ones. */
  isOpen: boolean;
  capacity: number;
  /** Slots that are never void; at least one while there are rows. */
  slots: number;
  newest: BatchSlot<R> | undefined;
  first: BatchSlot<R> | undefined;
}

interface SizesNow {
  /** @param opened size when the window opened */
  sizeOf(limits: Limits, opened: number): number;
  mostCostOf(limits: Limits): number;
}

/** Beyond this many lanes, we forget those without rows. */
const LANES_REMEMBERED = 1024;

/**
 * Rows ready for a partition, by lane, and their batches' order.
 *
 * A closed window becomes a slot, which gets its rows when a partition takes it. So a batch with
 * room keeps its place and grows, new rows replace rows that left, and urgent rows go first.
 */
export class ReadyQueue<R extends QueuedRequest> {
  private readonly slots = new Heap<BatchSlot<R>>((a, b) => a.turn - b.turn || a.id - b.id);
  private queues = new Map<Lane, LaneQueue<R>>();
  /** Cached: most calls ask for the same lane. */
  private last: LaneQueue<R> | undefined;
  private lanes = LANES_REMEMBERED;
  private lastId = 0;

  constructor(
    private readonly order: QueueOrder,
    private readonly sizes: SizesNow,
    private readonly budget?: Budget,
  ) {}

  addWindow({ lane, parts, size, reason }: Window<R>, now: number): void {
    const queue = this.queueOf(lane);
    queue.isOpen = false;
    let [rows, priority] = [0, -Infinity];
    for (const part of parts) {
      if (!part.request.isOver) {
        queue.rows.add(part);
        rows += part.count;
        priority = Math.max(priority, part.request.priority);
      }
    }
    if (rows > 0) {
      const room = reason === 'flush' ? rows : Math.max(rows, this.sizes.sizeOf(lane.limits, size));
      this.admit({
        queue,
        size,
        room,
        reason,
        priority,
        turn: turnOf(this.order, now, priority),
        id: this.lastId++,
      });
    }
  }

  openWindow(lane: Lane): void {
    this.queueOf(lane).isOpen = true;
  }

  sizeOf(lane: Lane): number {
    return this.queues.get(lane)?.rows.size ?? 0;
  }

  roomIn(lane: Lane): number {
    const queue = this.queueOf(lane);
    return queue.isOpen ? 0 : Math.max(0, queue.capacity - queue.rows.size);
  }

  roomFor(request: R, offset: number): number {
    const { lane, size } = request;
    const count = Math.min(this.roomIn(lane), size - offset);
    const { rows, slots } = this.queueOf(lane);
    return count === 0 ? 0 : rows.fitting(request, offset, count, slots);
  }

  extend(part: Part<R>, now: number): void {
    const { lane, priority } = part.request;
    const queue = this.queueOf(lane);
    queue.rows.add(part);
    if (!queue.first || priority > queue.first.priority) {
      const size = this.sizes.sizeOf(lane.limits, lane.limits.batchSize);
      const turn = turnOf(this.order, now, priority);
      this.admit({
        queue,
        size,
        room: 0,
        reason: 'flush',
        priority,
        turn,
        id: this.lastId++,
        isExpress: true,
      });
    }
  }

  closeWindow(lane: Lane): void {
    const queue = this.queues.get(lane);
    const room = this.roomIn(lane);
    if (queue && room > 0) {
      // The newest slot may have been taken before older ones.
      const slot =
        queue.newest ??
        this.slots.heapArray.find((other) => other.queue === queue && isOrdinary(other))!;
      slot.reason = 'flush';
      slot.room -= room;
      queue.capacity -= room;
    }
  }

  retry(parts: readonly Part<R>[], retryState: unknown, size: number): void {
    const { lane, priority, arrivedAt } = parts[0]!.request;
    const turn = turnOf(this.order, arrivedAt, priority);
    const again = { parts, retryState };
    // Goes even before rows that arrived at the same time.
    const id = this.lastId++ - Number.MAX_SAFE_INTEGER;
    this.admit({
      queue: this.queueOf(lane),
      size,
      room: 0,
      reason: 'retry',
      priority,
      turn,
      id,
      again,
    });
  }

  leave(request: R): void {
    this.queues.get(request.lane)?.rows.leave(request);
  }

  next(now: number): 'full' | 'growing' | undefined {
    for (let slot = this.slots.peek(); slot; slot = this.slots.peek()) {
      const rows = this.rowsFor(slot, now);
      if (rows > 0) {
        const size = this.sizes.sizeOf(slot.queue.lane.limits, slot.size);
        const isFull = rows >= size || slot.queue.rows.isFull;
        const isWhole = slot.queue.lane.isAlone || (isFull && slot.reason !== 'flush');
        return slot.again || isWhole ? 'full' : 'growing';
      }
      this.remove();
    }
    return undefined;
  }

  /**
   * Takes the next batch; there must be one.
   *
   * @param endOf the time when we expect this many of the lane's rows, at this cost, to have run
   */
  take(
    now: number,
    endOf: (lane: Lane, rows: number, cost?: number) => number = () => now,
  ): Window<R> {
    const { queue, size: opened, reason, again, turn, priority } = this.remove();
    const { lane } = queue;
    if (again) {
      return {
        lane,
        parts: again.parts.filter(({ request }) => isWanted(request, now)),
        size: opened,
        reason,
        retryState: again.retryState,
      };
    }
    const size = this.sizes.sizeOf(lane.limits, opened);
    const most = this.budget && this.sizes.mostCostOf(lane.limits);
    const until = queue.rows.hasDeadlines ? endOf(lane, ...queue.rows.expected(size, most)) : now;
    const parts = queue.rows.take(size, now, until, most);
    if (queue.rows.size > 0 && queue.slots === 0) {
      // A request that must run whole displaced these rows, or they exceeded the batch's budget.
      this.admit({
        queue,
        size: lane.limits.batchSize,
        room: 0,
        reason: this.budget || size < opened ? reason : 'flush',
        priority,
        turn,
        id: this.lastId++,
      });
    }
    const rows = sizeOf(parts);
    const closedBy = rows >= size ? 'full' : queue.rows.closedBy;
    return {
      lane,
      parts,
      size: Math.max(size, rows),
      reason: lane.isAlone ? reason : (closedBy ?? reason),
    };
  }

  clear(): Set<R> {
    const requests = new Set(this.requests());
    requests.forEach((request) => (request.ready = undefined));
    this.slots.clear();
    this.queues.clear();
    this.last = undefined;
    return requests;
  }

  /** Queued requests, some twice. */
  *requests(): Generator<R> {
    for (const { again } of this.slots.heapArray) {
      yield* (again?.parts ?? []).map(({ request }) => request);
    }
    for (const { rows } of this.queues.values()) {
      for (const { request } of rows) {
        yield request;
      }
    }
  }

  get isEmpty(): boolean {
    return this.slots.length === 0;
  }

  private admit(slot: BatchSlot<R>): void {
    const { queue, room, again } = slot;
    this.slots.add(slot);
    if (again) {
      return;
    }
    queue.slots += isOrdinary(slot) ? 1 : 0;
    queue.capacity += room;
    if (room > 0) {
      queue.newest = slot;
    }
    if (!queue.first || slot.priority >= queue.first.priority) {
      queue.first = slot;
    }
  }

  private remove(): BatchSlot<R> {
    const slot = this.slots.pop()!;
    const { queue, room } = slot;
    queue.slots -= isOrdinary(slot) ? 1 : 0;
    queue.capacity -= room;
    queue.first = queue.first === slot ? undefined : queue.first;
    queue.newest = queue.newest === slot ? undefined : queue.newest;
    return slot;
  }

  private rowsFor(
    { again, queue: { rows }, isExpress, priority }: BatchSlot<R>,
    now: number,
  ): number {
    if (again) {
      return sizeOf(again.parts.filter(({ request }) => isWanted(request, now)));
    }
    return isExpress && !rows.reaches(priority, now) ? 0 : rows.size;
  }

  /**
   * Keeps lanes while they are few: a Map that changes with every window keeps its outgrown tables
   * alive.
   */
  private queueOf(lane: Lane): LaneQueue<R> {
    if (this.last?.lane === lane) {
      return this.last;
    }
    let queue = this.queues.get(lane);
    if (!queue) {
      if (this.queues.size === this.lanes) {
        this.queues = new Map(
          [...this.queues].filter(([, { slots, isOpen }]) => isOpen || slots > 0),
        );
        this.lanes = Math.max(LANES_REMEMBERED, this.queues.size * 2);
      }
      queue = {
        lane,
        rows: new RowQueue(this.order, this.budget),
        isOpen: false,
        capacity: 0,
        slots: 0,
        newest: undefined,
        first: undefined,
      };
      this.queues.set(lane, queue);
    }
    this.last = queue;
    return queue;
  }
}

function isOrdinary<R extends QueuedRequest>({ isExpress, again }: BatchSlot<R>): boolean {
  return !isExpress && !again;
}

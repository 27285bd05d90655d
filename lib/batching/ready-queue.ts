import TinyQueue from 'tinyqueue';
import { PriorityQueue, type QueueOrder } from './priority-queue.js';
import { isWanted, type Lane, type Part, type QueuedRequest, sizeOf } from './queued-request.js';

/** Why a window closed, or was taken as it stood. */
export type CloseReason = 'full' | 'timeout' | 'idle' | 'flush' | 'drain' | 'retry' | 'inline';

/** Rows of one lane that run as one batch. */
export interface Window<R extends QueuedRequest> {
  readonly lane: Lane;
  readonly parts: readonly Part<R>[];
  /** The number of rows at which it is full. */
  readonly size: number;
  readonly reason: CloseReason;
  /** What is known of earlier runs of these rows, which now run by themselves. */
  readonly retryState?: unknown;
}

/**
 * The right to one batch of the rows that are ready in a lane, of whichever it is to have when its
 * turn comes.
 */
interface BatchSlot<R extends QueuedRequest> {
  readonly queue: LaneQueue<R>;
  readonly size: number;
  /** What it stands for when it comes to the room in its lane. */
  room: number;
  reason: CloseReason;
  readonly priority: number;
  /** Its turn: when it became ready, but for a head start by priority. */
  readonly turn: number;
  readonly id: number;
  /** It was given for rows of its priority, and is void without them. */
  readonly isExpress?: boolean;
  /** The rows that run again, by themselves. */
  readonly again?: Pick<Window<R>, 'parts' | 'retryState'>;
}

interface LaneQueue<R extends QueuedRequest> {
  readonly lane: Lane;
  readonly rows: PriorityQueue<R>;
  /** It has a window that is open, whose rows go before all that come later. */
  isOpen: boolean;
  /** The rows that its tickets stand for. */
  capacity: number;
  /** Those that are never void; at least one while there are rows. */
  slots: number;
  newest: BatchSlot<R> | undefined;
  /** Of its tickets the newest of the highest priority, as far as known. */
  first: BatchSlot<R> | undefined;
}

/** With more lanes than this, and twice as many as have rows, the others are forgotten. */
const LANES_REMEMBERED = 1024;

/**
 * The rows that are ready for a partition, in lanes, and the batches that they have a right to, in
 * order.
 *
 * A window that has closed is a ticket, and which rows it gets is decided only when a partition
 * takes it. So a window that is not full keeps its place and goes on growing, the places of rows
 * that have left are refilled, and urgent rows go ahead, all by themselves.
 */
export class ReadyQueue<R extends QueuedRequest> {
  private readonly slots = new TinyQueue<BatchSlot<R>>(
    [],
    (a, b) => a.turn - b.turn || a.id - b.id,
  );
  private queues = new Map<Lane, LaneQueue<R>>();
  /** Asked for last, and most often asked for next. */
  private last: LaneQueue<R> | undefined;
  private lanes = LANES_REMEMBERED;
  private lastId = 0;

  constructor(private readonly order: QueueOrder) {}

  /** A window of the lane has closed with these rows. */
  addWindow({ lane, parts, size, reason }: Window<R>, now: number): void {
    const queue = this.queueOf(lane);
    queue.isOpen = false;
    const live = parts.filter(({ request }) => !request.isOver);
    if (live.length > 0) {
      const priority = live.reduce(
        (highest, { request }) => Math.max(highest, request.priority),
        -Infinity,
      );
      live.forEach((part) => queue.rows.add(part));
      const room = reason === 'flush' ? sizeOf(live) : size;
      this.admit({
        queue,
        size,
        room,
        reason,
        priority,
        turn: this.turn(now, priority),
        id: this.lastId++,
      });
    }
  }

  /** A row of the lane is in an open window. */
  openWindow(lane: Lane): void {
    this.queueOf(lane).isOpen = true;
  }

  /** How many rows can still be added to the tickets of the lane. */
  roomIn(lane: Lane): number {
    const queue = this.queueOf(lane);
    return queue.isOpen ? 0 : Math.max(0, queue.capacity - queue.rows.size);
  }

  /** Adds rows for which there is room. */
  extend(part: Part<R>, now: number): void {
    const { lane, priority } = part.request;
    const queue = this.queueOf(lane);
    queue.rows.add(part);
    if (!queue.first || priority > queue.first.priority) {
      const size = lane.limits.batchSize;
      const turn = this.turn(now, priority);
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

  /** There is no more room in the lane. */
  closeWindow(lane: Lane): void {
    const queue = this.queues.get(lane);
    const room = this.roomIn(lane);
    if (queue && room > 0) {
      // The newest may have been taken before the others.
      const ticket =
        queue.newest ??
        this.slots.data.find((other) => other.queue === queue && isOrdinary(other))!;
      ticket.reason = 'flush';
      ticket.room -= room;
      queue.capacity -= room;
    }
  }

  /**
   * These rows have run in a batch that failed, and are to run again, ahead of all that came later.
   */
  retry(parts: readonly Part<R>[], retryState: unknown, size: number): void {
    const { lane, priority, arrivedAt } = parts[0]!.request;
    const turn = this.turn(arrivedAt, priority);
    const again = { parts, retryState };
    // Also of those that came at the same time they are the first.
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

  /** The request is over; its rows will not be taken. */
  leave(request: R): void {
    this.queues.get(request.lane)?.rows.leave(request);
  }

  /** Whether there is a batch to take, and whether it is full. */
  next(now: number): 'full' | 'growing' | undefined {
    for (let ticket = this.slots.peek(); ticket; ticket = this.slots.peek()) {
      const rows = this.rowsFor(ticket, now);
      if (rows > 0) {
        return ticket.again || (rows >= ticket.size && ticket.reason !== 'flush')
          ? 'full'
          : 'growing';
      }
      this.remove();
    }
    return undefined;
  }

  /**
   * Takes the batch that is next; there is one. `endOf` says when so many rows of the lane will
   * have run.
   */
  take(now: number, endOf: (lane: Lane, rows: number) => number = () => now): Window<R> {
    const { queue, size, reason, again, turn, priority } = this.remove();
    const { lane } = queue;
    if (again) {
      return {
        lane,
        parts: again.parts.filter(({ request }) => isWanted(request, now)),
        size,
        reason,
        retryState: again.retryState,
      };
    }
    const parts = queue.rows.take(size, now, endOf(lane, Math.min(size, queue.rows.size)));
    if (queue.rows.size > 0 && queue.slots === 0) {
      // Those that a request which must run whole has pushed out.
      this.admit({
        queue,
        size: lane.limits.batchSize,
        room: 0,
        reason: 'flush',
        priority,
        turn,
        id: this.lastId++,
      });
    }
    const rows = sizeOf(parts);
    const isFull = rows >= size && !lane.isInline;
    return { lane, parts, size: Math.max(size, rows), reason: isFull ? 'full' : reason };
  }

  /** Empties the line and gives back every request that waited in it. */
  clear(): Set<R> {
    const requests = new Set<R>();
    for (let ticket = this.slots.pop(); ticket; ticket = this.slots.pop()) {
      ticket.again?.parts.forEach(({ request }) => requests.add(request));
    }
    for (const { rows } of this.queues.values()) {
      for (const { request } of rows) {
        request.ready = 0;
        requests.add(request);
      }
    }
    this.queues.clear();
    this.last = undefined;
    return requests;
  }

  get isEmpty(): boolean {
    return this.slots.length === 0;
  }

  /** How many of the rows that are ready so many idle partitions take at once. */
  takenBy(idle: number): number {
    const taken = new Map<LaneQueue<R>, number>();
    // The first tickets of the heap are not always those of the first turns, but nearly.
    for (const { queue, size, again } of this.slots.data.slice(0, idle)) {
      const rows = (taken.get(queue) ?? 0) + (again ? 0 : size);
      taken.set(queue, Math.min(rows, queue.rows.size));
    }
    return [...taken.values()].reduce((sum, rows) => sum + rows, 0);
  }

  private turn(readyAt: number, priority: number): number {
    return readyAt - priority * this.order.ageing;
  }

  private admit(ticket: BatchSlot<R>): void {
    const { queue, room, again } = ticket;
    this.slots.push(ticket);
    if (again) {
      return;
    }
    queue.slots += isOrdinary(ticket) ? 1 : 0;
    queue.capacity += room;
    if (room > 0) {
      queue.newest = ticket;
    }
    if (!queue.first || ticket.priority >= queue.first.priority) {
      queue.first = ticket;
    }
  }

  private remove(): BatchSlot<R> {
    const ticket = this.slots.pop()!;
    const { queue, room } = ticket;
    queue.slots -= isOrdinary(ticket) ? 1 : 0;
    queue.capacity -= room;
    queue.first = queue.first === ticket ? undefined : queue.first;
    queue.newest = queue.newest === ticket ? undefined : queue.newest;
    return ticket;
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
   * Kept while there are few: the outgrown tables of a Map that changes with every window keep what
   * was in them alive.
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
        rows: new PriorityQueue(this.order),
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

function isOrdinary({ isExpress, again }: BatchSlot<QueuedRequest>): boolean {
  return !isExpress && !again;
}

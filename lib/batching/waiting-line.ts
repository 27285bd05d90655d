/** Why a window closed, or was taken as it stood. */
export type CloseReason = 'full' | 'timeout' | 'idle' | 'flush' | 'drain';

/** Rows of one lane that will run as one batch. */
export interface Window<T> {
  readonly lane: unknown;
  readonly rows: T[];
  /** The number of rows at which it is full. */
  readonly size: number;
  reason: CloseReason;
}

/** How far behind the head rows are looked for that could fill it up again. */
const WINDOWS_SEARCHED = 64;

/** With more lanes than this, and twice as many as have a growing window, the others are forgotten. */
const LANES_REMEMBERED = 1024;

/**
 * The windows that wait for a partition, in the order in which they became ready.
 *
 * A window that is not full keeps its place and goes on growing until it is taken. Every operation takes constant time.
 * Entries are cleared rather than deleted: the outgrown tables of a Map or Set that changes with every window keep one
 * another, and all that was in them, alive past every minor garbage collection.
 */
export class WaitingLine<T> {
  private readonly windows: (Window<T> | undefined)[] = [];
  private first = 0;
  private growing = new Map<unknown, { window: Window<T> | undefined }>();
  private lanes = LANES_REMEMBERED;

  join(window: Window<T>): void {
    this.windows.push(window);
    if (window.rows.length < window.size && window.reason !== 'flush') {
      this.remember(window);
    }
  }

  /** How many rows fit into the waiting window of the lane; any number where there is none. */
  roomIn(lane: unknown): number {
    const window = this.growing.get(lane)?.window;
    return window ? window.size - window.rows.length : Infinity;
  }

  /** The waiting window of the lane grows no more. */
  seal(lane: unknown): void {
    const entry = this.growing.get(lane);
    if (entry?.window) {
      entry.window.reason = 'flush';
      entry.window = undefined;
    }
  }

  /** Adds the row to the waiting window of its lane; false when there is none with room. */
  grow(lane: unknown, row: T): boolean {
    const entry = this.growing.get(lane);
    if (!entry?.window) {
      return false;
    }
    const { window } = entry;
    window.rows.push(row);
    if (window.rows.length === window.size) {
      window.reason = 'full';
      entry.window = undefined;
    }
    return true;
  }

  /** The window that is next, left in its place. */
  get head(): Window<T> | undefined {
    return this.windows[this.first];
  }

  /** Takes the head out of the line; it grows no more. */
  take(): Window<T> | undefined {
    const window = this.head;
    if (!window) {
      return undefined;
    }
    const entry = this.growing.get(window.lane);
    if (entry?.window === window) {
      entry.window = undefined;
    }
    this.windows[this.first++] = undefined;
    // What has left is cut off when it is the larger half, so that each window is moved once at most.
    if (this.first * 2 > this.windows.length) {
      this.windows.splice(0, this.first);
      this.first = 0;
    }
    return window;
  }

  /**
   * Moves rows from the next windows of the head's lane up into the head, until it is full or there are no more. `moveUp` takes out of
   * a window what may move together into so much room, or gives `undefined` where that is too much.
   */
  refillHead(moveUp: (rows: T[], room: number) => T[] | undefined): void {
    const head = this.head!;
    const end = Math.min(this.windows.length, this.first + WINDOWS_SEARCHED);
    for (let i = this.first + 1; i < end; i++) {
      const { lane, rows } = this.windows[i]!;
      while (lane === head.lane && rows.length > 0 && head.rows.length < head.size) {
        const moved = moveUp(rows, head.size - head.rows.length);
        if (!moved) {
          return;
        }
        head.rows.push(...moved);
      }
    }
  }

  /** Empties the line and gives back every row that waited in it. */
  clear(): T[] {
    const rows: T[][] = [];
    for (let window = this.take(); window; window = this.take()) {
      rows.push(window.rows);
    }
    return rows.flat();
  }

  get isEmpty(): boolean {
    return this.head === undefined;
  }

  private remember(window: Window<T>): void {
    const entry = this.growing.get(window.lane);
    if (entry) {
      entry.window = window;
      return;
    }
    if (this.growing.size === this.lanes) {
      this.growing = new Map([...this.growing].filter(([, { window: growing }]) => growing));
      this.lanes = Math.max(LANES_REMEMBERED, this.growing.size * 2);
    }
    this.growing.set(window.lane, { window });
  }
}

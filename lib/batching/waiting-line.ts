/** Why a window closed, or was taken as it stood. */
export type CloseReason = 'full' | 'timeout' | 'idle' | 'drain';

/** Rows of one lane that will run as one batch. */
export interface Window<T> {
  readonly lane: unknown;
  readonly rows: T[];
  /** The number of rows at which it is full. */
  readonly size: number;
  reason: CloseReason;
}

/**
 * The windows that wait for a partition, in the order in which they became ready.
 *
 * A window that is not full keeps its place and goes on growing until it is taken. Every operation takes constant time.
 */
export class WaitingLine<T> {
  private readonly windows = new Set<Window<T>>();
  private readonly growing = new Map<unknown, Window<T>>();

  join(window: Window<T>): void {
    this.windows.add(window);
    if (window.rows.length < window.size) {
      this.growing.set(window.lane, window);
    }
  }

  /** Adds the row to the waiting window of its lane; false when there is none with room. */
  grow(lane: unknown, row: T): boolean {
    const window = this.growing.get(lane);
    if (!window) {
      return false;
    }
    window.rows.push(row);
    if (window.rows.length === window.size) {
      window.reason = 'full';
      this.growing.delete(lane);
    }
    return true;
  }

  /** The window that is next, left in its place. */
  get head(): Window<T> | undefined {
    return this.windows.values().next().value;
  }

  take(window: Window<T>): void {
    this.windows.delete(window);
    if (this.growing.get(window.lane) === window) {
      this.growing.delete(window.lane);
    }
  }

  /** Empties the line and gives back every row that waited in it. */
  clear(): T[] {
    const rows = [...this.windows].flatMap((window) => window.rows);
    this.windows.clear();
    this.growing.clear();
    return rows;
  }

  get isEmpty(): boolean {
    return this.windows.size === 0;
  }
}

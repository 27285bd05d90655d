import { stat } from 'node:fs/promises';

/** Milliseconds for which a file must not change before it counts as written completely. */
export const SETTLE_TIME = 500;

/** Identifies the content of a file, as far as the file system does; undefined while there is none. */
export async function stampOf(file: string): Promise<string | undefined> {
  try {
    const { ino, size, mtimeMs } = await stat(file);
    return `${ino} ${size} ${mtimeMs}`;
  } catch {
    return undefined;
  }
}

/** Says when a file that is looked at again and again has changed, and was written completely. */
export class FileChange {
  private seen: string | undefined;
  private seenAt = 0;

  constructor(
    /** The stamp of the file that was loaded. */
    private loaded: string | undefined,
  ) {}

  /**
   * Takes the stamp of the file now. `changed` once for each change, after two equal looks at that
   * distance; `pending`: look again after that time.
   */
  look(stamp: string | undefined, now: number): 'same' | 'pending' | 'changed' {
    if (stamp === undefined || stamp === this.loaded) {
      this.seen = undefined;
      return 'same';
    }
    if (stamp !== this.seen) {
      this.seen = stamp;
      this.seenAt = now;
      return 'pending';
    }
    if (now - this.seenAt < SETTLE_TIME) {
      return 'pending';
    }
    // One that cannot be loaded is not tried again before it changes.
    this.loaded = stamp;
    return 'changed';
  }
}

import { type FSWatcher, watch } from 'node:fs';
import { dirname } from 'node:path';
import { stat } from 'node:fs/promises';

/** Milliseconds between polls: network file systems emit no events. */
const LOOK_INTERVAL = 10_000;

/**
 * Watches a file for new content, by its directory: a file that another is renamed to emits no
 * events, and a mounted ConfigMap swaps a link in the folder.
 */
export class FileWatch {
  private readonly change: FileChange;
  private watcher: FSWatcher | undefined;
  private settling: NodeJS.Timeout | undefined;
  private readonly interval: NodeJS.Timeout;
  private isClosed = false;

  /**
   * @param changed called when the file has other content, and was written completely
   */
  constructor(
    private readonly file: string,
    loaded: string | undefined,
    private readonly changed: () => void,
  ) {
    this.change = new FileChange(loaded);
    this.interval = setInterval(() => this.lookAgain(), LOOK_INTERVAL).unref();
    this.lookAgain();
  }

  close(): void {
    this.isClosed = true;
    clearInterval(this.interval);
    clearTimeout(this.settling);
    this.watcher?.close();
  }

  private lookAgain(): void {
    this.watcher ??= this.watchDirectory();
    void this.look();
  }

  private watchDirectory(): FSWatcher | undefined {
    try {
      const watcher = watch(dirname(this.file), { persistent: false }, () => void this.look());
      watcher.on('error', () => {
        watcher.close();
        // The next poll watches again.
        this.watcher = undefined;
      });
      return watcher;
    } catch {
      // The directory may be missing, or watches are used up; polling still works.
      return undefined;
    }
  }

  private async look(): Promise<void> {
    const stamp = await stampOf(this.file);
    if (this.isClosed) {
      return;
    }
    const found = this.change.look(stamp, performance.now());
    if (found === 'pending') {
      this.settling ??= setTimeout(() => {
        this.settling = undefined;
        void this.look();
      }, SETTLE_TIME).unref();
    } else if (found === 'changed') {
      this.changed();
    }
  }
}

/** A file that hasn't changed for this many milliseconds counts as written completely. */
export const SETTLE_TIME = 500;

/** Identifies a file's content, as far as the file system does; undefined without a file. */
export async function stampOf(file: string): Promise<string | undefined> {
  try {
    const { ino, size, mtimeMs } = await stat(file);
    return `${ino} ${size} ${mtimeMs}`;
  } catch {
    return undefined;
  }
}

/** Detects that a polled file has changed and was written completely. */
export class FileChange {
  private seen: string | undefined;
  private seenAt = 0;

  constructor(
    /** The loaded file's stamp. */
    private loaded: string | undefined,
  ) {}

  /**
   * `changed` once for each change, when the stamp has stayed the same for the settle time;
   * `pending`: look again after that time.
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
    // If it can't be loaded, we wait for the next change.
    this.loaded = stamp;
    return 'changed';
  }
}

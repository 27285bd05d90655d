import { constants } from 'node:fs';
import { access, copyFile, type FileHandle, mkdtemp, open, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** A file without a name, which nothing changes, and which ends with the process at the latest. */
export interface UnnamedCopy {
  /** A path that this process can open until the copy is closed. */
  readonly path: string;
  close(): Promise<void>;
}

/** Copies a file to the folder; undefined where that is not possible. */
export async function unnamedCopy(
  path: string,
  folder = tmpdir(),
): Promise<UnnamedCopy | undefined> {
  // Only Linux opens a file without a name again, by the path of its descriptor.
  if (process.platform !== 'linux') {
    return undefined;
  }
  try {
    const own = await mkdtemp(join(folder, 'nestjs-serving-'));
    try {
      const copy = join(own, 'model');
      // Shares the blocks of the file where the file system can.
      await copyFile(path, copy, constants.COPYFILE_FICLONE);
      const file = await open(copy);
      return await reopenable(file);
    } finally {
      await rm(own, { recursive: true });
    }
  } catch {
    // The folder is read-only or full.
    return undefined;
  }
}

/**
 * The file by the path of its descriptor. Undefined where that does not lead to it, such as in a
 * container that sees the processes of its host.
 */
async function reopenable(file: FileHandle): Promise<UnnamedCopy | undefined> {
  const path = `/proc/${process.pid}/fd/${file.fd}`;
  try {
    const [own, found] = [await file.stat(), await stat(path)];
    await access(path, constants.R_OK);
    if (own.ino === found.ino && own.dev === found.dev) {
      return { path, close: () => file.close() };
    }
  } catch {
    // The path does not exist, or may not be read.
  }
  await file.close();
  return undefined;
}

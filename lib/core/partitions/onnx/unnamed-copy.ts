import { constants } from 'node:fs';
import { access, copyFile, type FileHandle, mkdtemp, open, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** A file without a name: nothing can change it, and it ends with the process. */
export interface UnnamedCopy {
  /** Only this process can open it, until the copy is closed. */
  readonly path: string;
  close(): Promise<void>;
}

/** Copies a file into the folder; undefined if that is not possible. */
export async function unnamedCopy(
  path: string,
  folder = tmpdir(),
): Promise<UnnamedCopy | undefined> {
  // Only Linux can reopen a file without a name, by its descriptor's path.
  if (process.platform !== 'linux') {
    return undefined;
  }
  try {
    const own = await mkdtemp(join(folder, 'nestjs-serving-'));
    try {
      const copy = join(own, 'model');
      // Shares blocks with the original if the file system can.
      await copyFile(path, copy, constants.COPYFILE_FICLONE);
      const file = await open(copy);
      return await reopenable(file);
    } finally {
      await rm(own, { recursive: true });
    }
  } catch {
    // For example, the folder is read-only or full.
    return undefined;
  }
}

/** Undefined if the path leads elsewhere, as in a container that sees its host's processes. */
async function reopenable(file: FileHandle): Promise<UnnamedCopy | undefined> {
  const path = `/proc/${process.pid}/fd/${file.fd}`;
  try {
    const [own, found] = [await file.stat(), await stat(path)];
    await access(path, constants.R_OK);
    if (own.ino === found.ino && own.dev === found.dev) {
      return { path, close: () => file.close() };
    }
  } catch {
    // There is no such path, or it is not readable.
  }
  await file.close();
  return undefined;
}

import { createHash } from 'node:crypto';
import { readFile, stat } from 'node:fs/promises';
import { setImmediate } from 'node:timers/promises';
import type { InferenceSession } from 'onnxruntime-common';
import { ServingLoadError } from '../../core/errors.js';
import { digestOf, PIECE, piecesOf } from '../../core/partitions/file-digest.js';

/** The same for all sessions, even if the file changes. */
export interface ModelContent {
  readonly name: string;
  /** SHA-256 by path, the model first; empty for a model given as bytes. */
  readonly files: ReadonlyMap<string, string>;
  /** Files with this stamp are unchanged. */
  readonly stamp?: string | undefined;
  readonly isDynamicallyQuantised: boolean;
  /** True if the file has no operator whose work depends on values. */
  readonly isSteady: boolean;
  /** Only this process can open this copy, which can't change. */
  readonly copy?: string;
  /** Shared memory, if there is no copy. */
  readonly bytes?: Uint8Array;
}

/**
 * Opens unchanged files, otherwise the copy or the bytes. Files come first because providers cache
 * compiled models by path.
 *
 * @throws ServingLoadError when files have changed and there is neither copy nor bytes
 */
export async function sessionOf<
  Opened extends { readonly session: Pick<InferenceSession, 'release'> },
>(content: ModelContent, create: (model: string | Uint8Array) => Promise<Opened>): Promise<Opened> {
  const { files, bytes, copy } = content;
  const [path] = files.keys();
  const before = await stampOf(files.keys());
  if (path !== undefined && (await changedFile(content)) === undefined) {
    const opened = await create(path);
    if ((await stampOf(files.keys())) === before) {
      return opened;
    }
    await opened.session.release();
  }
  if (copy !== undefined) {
    return create(copy);
  }
  if (bytes) {
    // onnxruntime refuses shared memory.
    return create(bytes.buffer instanceof SharedArrayBuffer ? bytes.slice() : bytes);
  }
  throw new ServingLoadError(
    `The file ${(await changedFile(content)) ?? path} has changed since the serving started, so ` +
      'no session like the first ones can be made; put the file back, or restart the ' +
      'application. (A model of one file below 2 GiB is kept.)',
  );
}

/** Omits bytes that the process can read from the file. */
export async function contentForProcess(content: ModelContent): Promise<ModelContent> {
  const { copy, bytes: _, ...pinned } = content;
  if (content.files.size > 0 && (await changedFile(content)) === undefined) {
    return pinned;
  }
  return copy === undefined ? content : { ...pinned, bytes: await readFile(copy) };
}

async function changedFile({ files, stamp, bytes }: ModelContent): Promise<string | undefined> {
  if ((await stampOf(files.keys())) === stamp) {
    return undefined;
  }
  for (const [path, digest] of files) {
    const isSame = bytes ? holds(path, bytes) : digestOf(path).then((now) => now === digest);
    if (!(await isSame.catch(() => false))) {
      return path;
    }
  }
  return undefined;
}

/** The same on all machines. */
export async function hashOf({ files, bytes = new Uint8Array() }: ModelContent): Promise<string> {
  if (files.size > 0) {
    return [...files.values()].join();
  }
  const hash = createHash('sha256');
  for (let at = 0; at < bytes.length; at += PIECE) {
    hash.update(bytes.subarray(at, at + PIECE));
    // Keeps the event loop free.
    await setImmediate();
  }
  return hash.digest('base64');
}

/** Detects writes, unless two fall into one tick of the clock. */
async function stampOf(paths: Iterable<string>): Promise<string> {
  const stats = await Promise.allSettled([...paths].map((path) => stat(path)));
  return stats
    .map((each) =>
      each.status === 'fulfilled' ? `${each.value.ino} ${each.value.ctimeMs}` : 'none',
    )
    .join();
}

/** Undefined for files younger than the process; all later writes change it. */
export async function lastingStampOf(paths: readonly string[]): Promise<string | undefined> {
  const stamp = await stampOf(paths);
  const isOld = stamp
    .split(',')
    .every((each) => Number(each.split(' ')[1]) < performance.timeOrigin);
  return isOld ? stamp : undefined;
}

export async function holds(path: string, bytes: Uint8Array): Promise<boolean> {
  let length = 0;
  for await (const [piece, at] of piecesOf(path)) {
    length = at + piece.length;
    if (!piece.equals(bytes.subarray(at, length))) {
      return false;
    }
  }
  return length === bytes.length;
}

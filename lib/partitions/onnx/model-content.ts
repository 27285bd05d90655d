import { createHash } from 'node:crypto';
import { readFile, stat } from 'node:fs/promises';
import { setImmediate } from 'node:timers/promises';
import type { InferenceSession } from 'onnxruntime-common';
import { ServingLoadError } from '../../errors.js';
import { digestOf, holds, PIECE } from './file-pieces.js';

/** The model of all sessions of a serving, even if its file changes meanwhile. */
export interface ModelContent {
  /** The name of the model in messages. */
  readonly name: string;
  /** The SHA-256 of each file by path, the model itself first; empty for a model of bytes. */
  readonly files: ReadonlyMap<string, string>;
  /** It quantises at run time over the whole batch. */
  readonly isDynamicallyQuantised: boolean;
  /** The path of a copy that cannot change, which this process alone can open. */
  readonly copy?: string;
  /** In shared memory, where there is no copy. */
  readonly bytes?: Uint8Array;
}

/**
 * Creates a session from the files of the content if they have not changed, else from what was kept
 * of it. The files come first, since providers keep compiled models by the path of the file.
 *
 * @throws ServingLoadError when the files have changed and nothing was kept
 */
export async function sessionOf<
  Opened extends { readonly session: Pick<InferenceSession, 'release'> },
>(content: ModelContent, create: (model: string | Uint8Array) => Promise<Opened>): Promise<Opened> {
  const { files, bytes, copy } = content;
  const [path] = files.keys();
  const before = await stampOf(files);
  if (path !== undefined && (await changedFile(content)) === undefined) {
    const opened = await create(path);
    if ((await stampOf(files)) === before) {
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

/** The content for a process: without the bytes if the process can read the same from the file. */
export async function contentForProcess(content: ModelContent): Promise<ModelContent> {
  const { name, files, isDynamicallyQuantised, copy } = content;
  if (files.size > 0 && (await changedFile(content)) === undefined) {
    return { name, files, isDynamicallyQuantised };
  }
  return copy === undefined
    ? content
    : { name, files, isDynamicallyQuantised, bytes: await readFile(copy) };
}

async function changedFile({ files, bytes }: ModelContent): Promise<string | undefined> {
  for (const [path, digest] of files) {
    const isSame = bytes ? holds(path, bytes) : digestOf(path).then((now) => now === digest);
    if (!(await isSame.catch(() => false))) {
      return path;
    }
  }
  return undefined;
}

/** The hash of the content, the same on all machines. */
export async function hashOf({ files, bytes = new Uint8Array() }: ModelContent): Promise<string> {
  if (files.size > 0) {
    return [...files.values()].join();
  }
  const hash = createHash('sha256');
  for (let at = 0; at < bytes.length; at += PIECE) {
    hash.update(bytes.subarray(at, at + PIECE));
    // A large model does not hold up the event loop.
    await setImmediate();
  }
  return hash.digest('base64');
}

/** Identifies the version of the files, to detect writes while they are read. */
async function stampOf(files: ModelContent['files']): Promise<string> {
  const stats = await Promise.allSettled([...files.keys()].map((path) => stat(path)));
  return stats
    .map((each) =>
      each.status === 'fulfilled' ? `${each.value.ino} ${each.value.ctimeMs}` : 'none',
    )
    .join();
}

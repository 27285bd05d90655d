import { createHash } from 'node:crypto';
import { open, readFile, stat } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';
import type { InferenceSession } from 'onnxruntime-common';
import { messageOf, ServingLoadError } from '../../errors.js';
import { MAX_BYTES } from '../worker/codec.js';
import type { Fetching } from './download/fetching.js';
import type { RemoteModel } from './download/remote-model.js';
import { ModelScan, PIECE, scanOf } from './external-files.js';
import { type UnnamedCopy, unnamedCopy } from './unnamed-copy.js';

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

/** The bytes of a model that is kept in memory, and not as a copy on disk. */
const SMALL = 1 << 20;

/** A model: the path of its file, which may have to have this SHA-256; its bytes; or its address. */
export type ModelPlace =
  { readonly file: string; readonly sha256?: string | undefined } | Uint8Array | RemoteModel;

/** Reads a model once, for all sessions of a serving. */
export class ModelSource {
  private content: Promise<ModelContent> | undefined;
  private kept = new AbortController();

  constructor(private readonly model: ModelPlace) {}

  /** Always the content of the first reading, until the serving closes. */
  read(fetching: Fetching): Promise<ModelContent> {
    if (!this.content) {
      fetching.signal.addEventListener('abort', () => this.forget(), { once: true });
      this.content = contentOf(this.model, fetching, this.kept.signal);
    }
    return this.content;
  }

  /** The next reading starts anew. */
  forget(): void {
    this.content = undefined;
    this.kept.abort();
    this.kept = new AbortController();
  }
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

/** Identifies the version of the files, to detect writes while they are read. */
async function stampOf(files: ModelContent['files']): Promise<string> {
  const stats = await Promise.allSettled([...files.keys()].map((path) => stat(path)));
  return stats
    .map((each) =>
      each.status === 'fulfilled' ? `${each.value.ino} ${each.value.ctimeMs}` : 'none',
    )
    .join();
}

async function contentOf(
  model: ModelPlace,
  fetching: Fetching,
  kept: AbortSignal,
): Promise<ModelContent> {
  if (ArrayBuffer.isView(model)) {
    return contentOfBytes(model);
  }
  if ('name' in model) {
    const { fetchModel } = await import('./download/fetch-model.js');
    const path = await fetchModel(model, fetching);
    return contentOfFile(path, `${model.name} (${path})`, kept);
  }
  const content = await contentOfFile(model.file, model.file, kept);
  checkHash(content, model);
  return content;
}

function checkHash(
  { files }: ModelContent,
  { file, sha256 }: { readonly file: string; readonly sha256?: string | undefined },
): void {
  const found = Buffer.from(files.get(file) ?? '', 'base64').toString('hex');
  if (sha256 !== undefined && found !== sha256) {
    throw new ServingLoadError(
      `The model ${file} has the SHA-256 ${found}, and the definition says ${sha256}; put the ` +
        'right file there, or correct sha256',
    );
  }
}

async function contentOfBytes(model: Uint8Array): Promise<ModelContent> {
  const bytes = new Uint8Array(new SharedArrayBuffer(model.byteLength));
  bytes.set(model);
  const { isDynamicallyQuantised } = scanOf(bytes);
  return { name: `of ${model.byteLength} bytes`, files: new Map(), isDynamicallyQuantised, bytes };
}

async function contentOfFile(path: string, name: string, kept: AbortSignal): Promise<ModelContent> {
  try {
    const { size } = await stat(path);
    const isKept = size <= MAX_BYTES;
    const copy = isKept && size > SMALL ? await unnamedCopy(path) : undefined;
    const bytes = isKept && !copy ? new Uint8Array(new SharedArrayBuffer(size)) : undefined;
    const scan = new ModelScan();
    const digest = await digestOf(copy?.path ?? path, (piece, at) => {
      scan.add(piece);
      bytes?.set(piece, at);
    });
    const { externalFiles, isCompiled, isDynamicallyQuantised } = scan.end();
    if (isCompiled || externalFiles.size > 0) {
      await copy?.close();
      const others = [...externalFiles].map((other) => resolve(dirname(path), other));
      return { name, files: await digestsOf([path, ...others]), isDynamicallyQuantised };
    }
    const content = { name, files: new Map([[path, digest]]), isDynamicallyQuantised };
    return copy ? { ...content, copy: until(kept, copy) } : { ...content, ...(bytes && { bytes }) };
  } catch (cause) {
    throw new ServingLoadError(`Cannot read the model ${path}: ${messageOf(cause)}`, { cause });
  }
}

/** The path of the copy, which closes with the signal. */
function until(end: AbortSignal, copy: UnnamedCopy): string {
  const close = (): void => void copy.close();
  if (end.aborted) {
    close();
  } else {
    end.addEventListener('abort', close, { once: true });
  }
  return copy.path;
}

async function digestsOf(paths: readonly string[]): Promise<Map<string, string>> {
  const digests = new Map<string, string>();
  for (const path of paths) {
    digests.set(path, await digestOf(path));
  }
  return digests;
}

/** The digest of a file, whose pieces go to the visitor. */
async function digestOf(
  path: string,
  visit?: (piece: Uint8Array, at: number) => void,
): Promise<string> {
  const hash = createHash('sha256');
  for await (const [piece, at] of piecesOf(path)) {
    hash.update(piece);
    visit?.(piece, at);
  }
  return hash.digest('base64');
}

async function holds(path: string, bytes: Uint8Array): Promise<boolean> {
  let length = 0;
  for await (const [piece, at] of piecesOf(path)) {
    length = at + piece.length;
    if (!piece.equals(bytes.subarray(at, length))) {
      return false;
    }
  }
  return length === bytes.length;
}

/** The pieces of a file; each one overwrites the one before it. */
async function* piecesOf(path: string): AsyncGenerator<[piece: Buffer, at: number], void> {
  const file = await open(path);
  try {
    const piece = Buffer.alloc(PIECE);
    for (let at = 0, count = 1; count > 0; at += count) {
      count = (await file.read(piece)).bytesRead;
      yield [piece.subarray(0, count), at];
    }
  } finally {
    await file.close();
  }
}

import { createHash } from 'node:crypto';
import { open, stat } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';
import type { InferenceSession } from 'onnxruntime-common';
import { messageOf, ServingLoadError } from '../../errors.js';
import { MAX_BYTES } from '../worker/codec.js';
import type { Fetching } from './download/fetching.js';
import type { RemoteModel } from './download/remote-model.js';
import { externalFilesOf } from './external-files.js';

/** The model of all sessions of a serving, even if its file changes meanwhile. */
export interface ModelContent {
  /** The name of the model in messages. */
  readonly name: string;
  /** The SHA-256 of each file by path, the model itself first; empty for a model of bytes. */
  readonly files: ReadonlyMap<string, string>;
  /** In shared memory; undefined for a model that refers to other files, or is too large. */
  readonly bytes?: Uint8Array;
}

const PIECE = 1 << 20;

/** A model: the path of its file, which may have to have this SHA-256; its bytes; or its address. */
export type ModelPlace =
  { readonly file: string; readonly sha256?: string | undefined } | Uint8Array | RemoteModel;

/** Reads a model once, for all sessions of a serving. */
export class ModelSource {
  private content: Promise<ModelContent> | undefined;

  constructor(private readonly model: ModelPlace) {}

  /** Always the content of the first reading. */
  read(fetching: Fetching): Promise<ModelContent> {
    return (this.content ??= contentOf(this.model, fetching));
  }

  /** The next reading starts anew. */
  forget(): void {
    this.content = undefined;
  }
}

/**
 * Creates a session from the files of the content if they have not changed, else from its bytes.
 *
 * @throws ServingLoadError when the files have changed and there are no bytes
 */
export async function sessionOf<
  Opened extends { readonly session: Pick<InferenceSession, 'release'> },
>(content: ModelContent, create: (model: string | Uint8Array) => Promise<Opened>): Promise<Opened> {
  const { files, bytes } = content;
  const [path] = files.keys();
  const before = await stampOf(files);
  if (path !== undefined && (await changedFile(content)) === undefined) {
    const opened = await create(path);
    if ((await stampOf(files)) === before) {
      return opened;
    }
    await opened.session.release();
  }
  if (bytes) {
    // onnxruntime refuses shared memory.
    return create(bytes.buffer instanceof SharedArrayBuffer ? bytes.slice() : bytes);
  }
  throw new ServingLoadError(
    `The file ${(await changedFile(content)) ?? path} has changed since the serving started, so ` +
      'no session like the first ones can be made; put the file back, or restart the ' +
      'application. (A model of one file below 2 GiB is kept in memory.)',
  );
}

/** The content for a process: without the bytes if the process can read the same from the file. */
export async function contentForProcess(content: ModelContent): Promise<ModelContent> {
  const { name, files } = content;
  return files.size > 0 && (await changedFile(content)) === undefined ? { name, files } : content;
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

async function contentOf(model: ModelPlace, fetching: Fetching): Promise<ModelContent> {
  if (ArrayBuffer.isView(model)) {
    return contentOfBytes(model);
  }
  if ('name' in model) {
    const { fetchModel } = await import('./download/fetch-model.js');
    const path = await fetchModel(model, fetching);
    return contentOfFile(path, `${model.name} (${path})`);
  }
  const content = await contentOfFile(model.file, model.file);
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
  return { name: `of ${model.byteLength} bytes`, files: new Map(), bytes };
}

async function contentOfFile(path: string, name: string): Promise<ModelContent> {
  try {
    const { size } = await stat(path);
    // Limit of a message to a process.
    if (size > MAX_BYTES) {
      return { name, files: await digestsOf([path]) };
    }
    const bytes = new Uint8Array(new SharedArrayBuffer(size));
    const digest = await digestOf(path, bytes);
    const others = externalFilesOf(bytes);
    return others
      ? {
          name,
          files: await digestsOf([path, ...others.map((other) => resolve(dirname(path), other))]),
        }
      : { name, files: new Map([[path, digest]]), bytes };
  } catch (cause) {
    throw new ServingLoadError(`Cannot read the model ${path}: ${messageOf(cause)}`, { cause });
  }
}

async function digestsOf(paths: readonly string[]): Promise<Map<string, string>> {
  const digests = new Map<string, string>();
  for (const path of paths) {
    digests.set(path, await digestOf(path));
  }
  return digests;
}

/** The digest of a file; copies its bytes to `memory`. */
async function digestOf(path: string, memory?: Uint8Array): Promise<string> {
  const hash = createHash('sha256');
  for await (const [piece, at] of piecesOf(path)) {
    hash.update(piece);
    memory?.set(piece, at);
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

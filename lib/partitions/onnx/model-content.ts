import { createHash } from 'node:crypto';
import { open, stat } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';
import type { InferenceSession } from 'onnxruntime-common';
import { messageOf, ServingLoadError } from '../../errors.js';
import { MOST_BYTES } from '../worker/codec.js';

/** What every session of a serving is made of, whatever becomes of the model's file meanwhile. */
export interface ModelContent {
  /** As messages name the model. */
  readonly name: string;
  /**
   * The SHA-256 of the files of the model, by path, the model itself first; none where it was given
   * as bytes.
   */
  readonly files: ReadonlyMap<string, string>;
  /** In memory that threads share; none where the model refers to other files, or is too large. */
  readonly bytes?: Uint8Array;
}

const PIECE = 1 << 20;

/** Reads a model once, for all sessions of a serving. */
export class ModelSource {
  private content: Promise<ModelContent> | undefined;

  constructor(private readonly model: string | Uint8Array) {}

  /** What was read first. */
  read(): Promise<ModelContent> {
    const { model } = this;
    return (this.content ??=
      typeof model === 'string' ? contentOfFile(model) : contentOfBytes(model));
  }

  /** Has the next start read it anew. */
  forget(): void {
    this.content = undefined;
  }
}

/**
 * Makes a session of the content: of its files as long as they are what they were, else of the
 * bytes in memory.
 *
 * @throws ServingLoadError where the files have changed and there are no bytes
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
    // onnxruntime takes no shared memory.
    return create(bytes.buffer instanceof SharedArrayBuffer ? bytes.slice() : bytes);
  }
  throw new ServingLoadError(
    `The file ${(await changedFile(content)) ?? path} has changed since the serving started, so ` +
      'it has no session like the ' +
      'first ones any more; put the file back, or start the application anew. (A model is kept ' +
      'in memory if it is one file of ' +
      'less than 2 GiB.)',
  );
}

/**
 * The content as it is sent to a process: without the bytes where the process can read the same
 * from the file.
 */
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

/** Tells whether files were written while they were read. */
async function stampOf(files: ModelContent['files']): Promise<string> {
  const stats = await Promise.allSettled([...files.keys()].map((path) => stat(path)));
  return stats
    .map((each) =>
      each.status === 'fulfilled' ? `${each.value.ino} ${each.value.ctimeMs}` : 'none',
    )
    .join();
}

async function contentOfBytes(model: Uint8Array): Promise<ModelContent> {
  const bytes = new Uint8Array(new SharedArrayBuffer(model.byteLength));
  bytes.set(model);
  return { name: `of ${model.byteLength} bytes`, files: new Map(), bytes };
}

async function contentOfFile(path: string): Promise<ModelContent> {
  try {
    const { size } = await stat(path);
    // A message to a process holds no more.
    if (size > MOST_BYTES) {
      return { name: path, files: await digestsOf([path]) };
    }
    const bytes = new Uint8Array(new SharedArrayBuffer(size));
    const digest = await digestOf(path, bytes);
    const others = otherFiles(bytes);
    return others
      ? {
          name: path,
          files: await digestsOf([path, ...others.map((other) => resolve(dirname(path), other))]),
        }
      : { name: path, files: new Map([[path, digest]]), bytes };
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

/** The digest of a file, whose bytes are put into memory in passing. */
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

/** The pieces of a file, each in the memory of the one before it. */
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

/** The files that a model refers to; undefined where it refers to none. */
function otherFiles(bytes: Uint8Array): string[] | undefined {
  const model = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const files = new Set<string>();
  for (let at = model.indexOf(LOCATION); at >= 0; at = model.indexOf(LOCATION, at + 1)) {
    files.add(textAt(model, at + LOCATION.length));
  }
  return files.size > 0 || model.includes(COMPILED) ? [...files] : undefined;
}

/**
 * In the protobuf of a tensor whose data lies elsewhere: the key "location", before the field of
 * its value.
 */
const LOCATION = Buffer.from('\x0a\x08location\x12');

/** The operation of a model that was compiled for a device, whose code may lie in another file. */
const COMPILED = 'EPContext';

/**
 * The text of a protobuf field: its length in groups of seven bits, the lowest first, then its
 * characters.
 */
function textAt(message: Buffer, start: number): string {
  let length = 0;
  let at = start;
  for (let shift = 0, group = 128; group > 127 && shift < 28; shift += 7) {
    group = message[at++] ?? 0;
    length |= (group & 127) << shift;
  }
  return message.toString('utf8', at, at + length);
}

import {
  access,
  copyFile,
  type FileHandle,
  mkdtemp,
  open,
  readdir,
  rm,
  stat,
} from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { messageOf, ServingLoadError } from '../../core/errors.js';
import { truncate } from '../../core/format.js';
import { MAX_BYTES } from '../../core/partitions/worker/codec.js';
import type {
  FetchedFile,
  Fetching,
  ModelPlace,
} from '../../core/partitions/model/remote-models.js';
import { digestOf, PIECE, piecesOf } from '../../core/partitions/file-digest.js';
import { lastingStampOf, type ModelContent } from './model-content.js';
import { constants } from 'node:fs';
import { tmpdir } from 'node:os';

/** Bytes. Models up to this size are kept in memory, not on disk. */
const SMALL = 1 << 20;

export interface LoadedModel {
  readonly content: ModelContent;
  readonly fetched?: FetchedFile | undefined;
}

export class ModelSource {
  private loaded: Promise<LoadedModel> | undefined;
  private kept = new AbortController();

  constructor(private readonly model: ModelPlace) {}

  load(fetching: Fetching): Promise<LoadedModel> {
    if (!this.loaded) {
      fetching.signal.addEventListener('abort', () => this.forget(), { once: true });
      this.loaded = loadedFrom(this.model, fetching, this.kept.signal);
    }
    return this.loaded;
  }

  async read(fetching: Fetching): Promise<ModelContent> {
    return (await this.load(fetching)).content;
  }

  forget(): void {
    this.loaded = undefined;
    this.kept.abort();
    this.kept = new AbortController();
  }
}

async function loadedFrom(
  model: ModelPlace,
  fetching: Fetching,
  kept: AbortSignal,
): Promise<LoadedModel> {
  if (ArrayBuffer.isView(model)) {
    return { content: await contentOfBytes(model) };
  }
  if ('fetch' in model) {
    const found = await model.fetch(fetching);
    const isBare = typeof found === 'string' || ArrayBuffer.isView(found);
    const fetched: FetchedFile = isBare ? { file: found } : found;
    const { file } = fetched;
    const content =
      typeof file === 'string'
        ? await contentOfFile(file, `${model.name} (${file})`, kept)
        : await contentOfBytes(file);
    return { content, fetched };
  }
  const content = await contentOfFile(model.file, model.file, kept);
  checkHash(content, model);
  return { content };
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
  const [, weights] = files.keys();
  if (sha256 !== undefined && weights !== undefined) {
    throw new ServingLoadError(
      `The model ${file} keeps weights in another file, ${weights}, whose content sha256 does not ` +
        'pin; export it as one file, or leave sha256 out',
    );
  }
}

async function contentOfBytes(model: Uint8Array): Promise<ModelContent> {
  const bytes = new Uint8Array(new SharedArrayBuffer(model.byteLength));
  bytes.set(model);
  const { isDynamicallyQuantised, isSteady } = scanOf(bytes);
  const facts = { isDynamicallyQuantised, isSteady };
  return { name: `of ${model.byteLength} bytes`, files: new Map(), ...facts, bytes };
}

interface SharedFile {
  readonly content: ReturnType<typeof readFile>;
  readonly unused: AbortController;
  users: number;
}

const sharedFiles = new Map<string, SharedFile>();

async function contentOfFile(path: string, name: string, kept: AbortSignal): Promise<ModelContent> {
  const stamp = await lastingStampOf([path]);
  const id = `${path} ${stamp}`;
  let file = sharedFiles.get(id);
  if (!file) {
    const unused = new AbortController();
    file = { content: readFile(path, stamp, unused.signal), unused, users: 0 };
    if (stamp !== undefined) {
      sharedFiles.set(id, file);
    }
  }
  const { content, unused } = file;
  file.users++;
  whenAborted(kept, () => {
    if (--file.users === 0) {
      sharedFiles.delete(id);
      unused.abort();
    }
  });
  const found = await content;
  if (found.files.size > 1) {
    // The other files may change without this one.
    sharedFiles.delete(id);
  }
  return { ...found, name };
}

async function readFile(
  path: string,
  stamp: string | undefined,
  unused: AbortSignal,
): Promise<Omit<ModelContent, 'name'>> {
  let copy: UnnamedCopy | undefined;
  try {
    const found = await stat(path);
    if (found.isDirectory()) {
      const models = (await readdir(path)).filter((name) => name.endsWith('.onnx'));
      throw new Error(`it is a folder; name the ONNX file in it${listed(models)}`);
    }
    const { size } = found;
    if (size === 0) {
      throw new Error('the file is empty');
    }
    const isKept = size <= MAX_BYTES;
    copy = isKept && size > SMALL ? await unnamedCopy(path) : undefined;
    const bytes = isKept && !copy ? new Uint8Array(new SharedArrayBuffer(size)) : undefined;
    const scan = new ModelScan();
    const digest = await digestOf(copy?.path ?? path, (piece, at) => {
      if (at === 0 && isLargeFilePointer(piece)) {
        throw new Error(
          'it is a pointer of Git LFS, and not the file itself; run "git lfs pull" in its repository',
        );
      }
      scan.add(piece);
      bytes?.set(piece, at);
    });
    const { externalFiles, isCompiled, isDynamicallyQuantised, isSteady } = scan.end();
    const facts = { isDynamicallyQuantised, isSteady };
    if (isCompiled || externalFiles.size > 0) {
      const others = [...externalFiles].map((other) => resolve(dirname(path), other));
      const paths = [path, ...others];
      const lasting = await lastingStampOf(paths);
      const files = await digestsOf(paths);
      await copy?.close();
      return { files, stamp: lasting, ...facts };
    }
    const content = { files: new Map([[path, digest]]), stamp, ...facts };
    return copy
      ? { ...content, copy: until(unused, copy) }
      : { ...content, ...(bytes && { bytes }) };
  } catch (cause) {
    await copy?.close();
    throw new ServingLoadError(`Cannot read the model ${path}: ${messageOf(cause)}`, { cause });
  }
}

function listed(names: readonly string[]): string {
  return names.length === 0 ? '' : `: ${truncate(names.toSorted().join(', '))}`;
}

/** See https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md. */
function isLargeFilePointer(piece: Uint8Array): boolean {
  const beginning = 'version https://git-lfs.github.com/spec/';
  return Buffer.from(piece.subarray(0, beginning.length)).toString('latin1') === beginning;
}

function until(end: AbortSignal, copy: UnnamedCopy): string {
  whenAborted(end, () => void copy.close());
  return copy.path;
}

function whenAborted(signal: AbortSignal, callback: () => void): void {
  if (signal.aborted) {
    callback();
  } else {
    signal.addEventListener('abort', callback, { once: true });
  }
}

async function digestsOf(paths: readonly string[]): Promise<Map<string, string>> {
  const digests = new Map<string, string>();
  for (const path of paths) {
    digests.set(path, await digestOf(path));
  }
  return digests;
}

/** Nameless: nothing can change it, and it ends with the process. */
interface UnnamedCopy {
  /** Only this process can open it. */
  readonly path: string;
  close(): Promise<void>;
}

export async function unnamedCopy(
  path: string,
  folder = tmpdir(),
): Promise<UnnamedCopy | undefined> {
  // Only Linux can reopen a nameless file, by its descriptor's path.
  if (process.platform !== 'linux') {
    return undefined;
  }
  try {
    const own = await mkdtemp(join(folder, 'nestjs-serving-'));
    try {
      const copy = join(own, 'model');
      // Shares blocks if the file system can.
      await copyFile(path, copy, constants.COPYFILE_FICLONE);
      const file = await open(copy);
      return await reopenable(file);
    } finally {
      await rm(own, { recursive: true });
    }
  } catch {
    // The disk may be full.
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
    // The path is missing or unreadable.
  }
  await file.close();
  return undefined;
}

/** Protobuf bytes before an external data file's name. */
const LOCATION = Buffer.from('\x0a\x08location\x12');

/** A model compiled for a device; its code may be in another file. */
const COMPILED = 'EPContext';

const QUANTISES = 'DynamicQuantizeLinear';

/** Operators whose work depends on values. Other texts may have these words, too. */
const UNSTEADY = [
  'ConstantOfShape',
  'Expand',
  'Loop',
  'OneHot',
  'Range',
  'Resize',
  'Scan',
  'Tile',
  'Upsample',
];

/** Overlap of pieces in bytes, for the longest possible path. */
const LONGEST = 8192;

class ModelScan {
  readonly externalFiles = new Set<string>();
  isCompiled = false;
  isDynamicallyQuantised = false;
  isSteady = true;
  /** The last piece's end, since a match may span two, and the new piece. */
  private readonly window = Buffer.allocUnsafe(LONGEST + PIECE);
  private length = 0;

  /** @param piece at most {@link PIECE} bytes */
  add(piece: Uint8Array): void {
    this.window.set(piece, this.length);
    this.length += piece.length;
    this.search(Math.max(0, this.length - LONGEST));
  }

  end(): this {
    this.search(this.length);
    return this;
  }

  private search(end: number): void {
    const bytes = this.window.subarray(0, this.length);
    locationsIn(bytes, end).forEach((file) => this.externalFiles.add(file));
    this.isCompiled ||= bytes.includes(COMPILED);
    this.isDynamicallyQuantised ||= bytes.includes(QUANTISES);
    this.isSteady &&= !UNSTEADY.some((operator) => bytes.includes(operator));
    bytes.copyWithin(0, end);
    this.length -= end;
  }
}

export function scanOf(bytes: Uint8Array): ModelScan {
  const scan = new ModelScan();
  for (let at = 0; at < bytes.length; at += PIECE) {
    scan.add(bytes.subarray(at, at + PIECE));
  }
  return scan.end();
}

export async function externalFilesIn(path: string): Promise<ReadonlySet<string>> {
  const scan = new ModelScan();
  for await (const [piece] of piecesOf(path)) {
    scan.add(piece);
  }
  return scan.end().externalFiles;
}

function locationsIn(model: Buffer, end: number): string[] {
  const files: string[] = [];
  for (
    let at = model.indexOf(LOCATION);
    at >= 0 && at < end;
    at = model.indexOf(LOCATION, at + 1)
  ) {
    files.push(textAt(model, at + LOCATION.length));
  }
  return files;
}

/** Reads a protobuf string: its length as a varint, then its characters. */
function textAt(message: Buffer, start: number): string {
  let length = 0;
  let at = start;
  for (let shift = 0, group = 128; group > 127 && shift < 28; shift += 7) {
    group = message[at++] ?? 0;
    length |= (group & 127) << shift;
  }
  return message.toString('utf8', at, at + length);
}

import { createHash, type Hash } from 'node:crypto';
import { createReadStream, existsSync, statSync } from 'node:fs';
import { readFile, stat } from 'node:fs/promises';
import { dirname, isAbsolute, join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { InvalidServingError, ServingLoadError } from '../../index.js';
import {
  externalFilesIn,
  type Fetching,
  isRemote,
  remoteRepositoryOf,
} from '../../doors/models.js';
import { isRecord } from '../../doors/options.js';
import { formatValue, messageOf } from '../../doors/text.js';

/**
 * Bytes or texts of a model's files, by path, such as `onnx/model.onnx`, `tokenizer.json` and
 * `config.json`.
 */
export type ModelFiles = Readonly<Record<string, Uint8Array | string>>;

/** Model with its tokenizer and configuration, laid out as on the Hub. */
export interface Repository {
  readonly name: string;
  /** Bytes of the file, or its path if only its reader needs them; undefined without it. */
  fetch(path: string, fetching: Fetching): Promise<Uint8Array | string | undefined>;
}

/**
 * Repository in a folder, at `hf:org/repo@revision`, or of given files.
 *
 * @throws InvalidServingError
 */
export function repositoryOf(owner: string, place: string | URL | ModelFiles): Repository {
  if (typeof place === 'string' && /^hf:/i.test(place)) {
    return remoteRepositoryOf(owner, place);
  }
  if (typeof place === 'string' || place instanceof URL) {
    return new Folder(owner, place);
  }
  return new GivenFiles(place);
}

/**
 * Repository of a folder, or of an ONNX file: the file's folder or the one around it, with its
 * config.json.
 *
 * @throws InvalidServingError for a file without a config.json
 */
export function placeOfPath(
  owner: string,
  given: string | URL,
): { readonly from: string | URL; readonly file?: string } {
  const [, repo, file, revision = ''] =
    /^(hf:[^/@]+\/[^/@]+)\/([^@]+)(@.+)?$/i.exec(String(given)) ?? [];
  if (repo !== undefined) {
    return { from: `${repo}${revision}`, file: file! };
  }
  if (isRemote(given)) {
    return remotePlace(owner, given);
  }
  const path = pathOf(given);
  if (!existsSync(path) || !statSync(path).isFile()) {
    return { from: given };
  }
  const folder = [dirname(path), dirname(dirname(path))].find((each) =>
    existsSync(join(each, 'config.json')),
  );
  if (folder === undefined) {
    throw new InvalidServingError(
      `${owner} was given the ONNX file ${path}, and its tokenizer, labels and limits belong to the ` +
        'file: neither its folder nor the one around it has a config.json; give the folder of ' +
        'both, or { from, file }',
    );
  }
  return { from: folder, file: relative(folder, path) };
}

/** Takes only `hf:org/repo`. */
function remotePlace(owner: string, given: string | URL): { readonly from: string } {
  const from = String(given);
  if (/^hf:/i.test(from)) {
    return { from };
  }
  throw new InvalidServingError(
    `${owner} was given ${new URL(from).origin}, and its model is a folder or a repository of the ` +
      'Hugging Face Hub, hf:org/repo, so that its tokenizer, labels and limits come with it',
  );
}

function pathOf(folder: string | URL): string {
  return folder instanceof URL || folder.startsWith('file:')
    ? fileURLToPath(folder)
    : resolve(folder);
}

/** Adds each file to the hash, except ONNX files, hashed elsewhere. */
export function hashing(repository: Repository, hash: Hash): Repository {
  return {
    name: repository.name,
    async fetch(path, fetching) {
      const found = await repository.fetch(path, fetching);
      if (path.endsWith('.onnx')) {
        return found;
      }
      const content = typeof found === 'string' ? await readFile(found) : found;
      hash.update(`${path} ${content?.length ?? '-'}\n`).update(content ?? '');
      return content;
    },
  };
}

class Folder implements Repository {
  readonly name: string;

  constructor(owner: string, folder: string | URL) {
    this.name = pathOf(folder);
    if (!existsSync(this.name)) {
      const hint =
        isAbsolute(String(folder)) || folder instanceof URL
          ? ''
          : ` (a relative path counts from ${process.cwd()})`;
      const isName = /^[\w.-]+\/[\w.-]+$/.test(String(folder));
      const hub = isName
        ? `; for the model of that name on Hugging Face, write hf:${String(folder)}`
        : '';
      throw new InvalidServingError(`${owner}: there is no folder ${this.name}${hint}${hub}`);
    }
  }

  async fetch(path: string): Promise<string | undefined> {
    const found = join(this.name, path);
    return (await stat(found).catch(() => undefined))?.isFile() ? found : undefined;
  }
}

class GivenFiles implements Repository {
  readonly name = 'the given files';

  constructor(private readonly files: ModelFiles) {}

  async fetch(path: string): Promise<Uint8Array | undefined> {
    const file = Object.hasOwn(this.files, path) ? this.files[path] : undefined;
    return typeof file === 'string' ? Buffer.from(file) : file;
  }
}

/**
 * Reads a JSON file; undefined without it.
 *
 * @throws ServingLoadError for invalid JSON
 */
export async function readJsonFile(
  repository: Repository,
  path: string,
  fetching: Fetching,
): Promise<unknown> {
  const bytes = await readBytes(repository, path, fetching);
  return bytes && jsonIn(repository, path, bytes);
}

/**
 * Reads an object from a JSON file; undefined without it.
 *
 * @throws ServingLoadError for other content
 */
export async function readConfig(
  repository: Repository,
  path: string,
  fetching: Fetching,
): Promise<Record<string, unknown> | undefined> {
  const bytes = await readBytes(repository, path, fetching);
  return bytes && configIn(repository, path, bytes);
}

/**
 * Reads an object from a JSON file.
 *
 * @throws ServingLoadError without it
 */
export async function needConfig(
  repository: Repository,
  path: string,
  fetching: Fetching,
): Promise<Record<string, unknown>> {
  return configIn(repository, path, await needFile(repository, path, fetching));
}

/**
 * Reads the bytes of a file.
 *
 * @throws ServingLoadError without it
 */
export async function needFile(
  repository: Repository,
  path: string,
  fetching: Fetching,
): Promise<Uint8Array> {
  const bytes = await readBytes(repository, path, fetching);
  if (!bytes) {
    throw new ServingLoadError(
      `${repository.name} has no ${path}, which the task needs; give a repository in the layout of ` +
        'the Hugging Face Hub, with config.json, tokenizer.json and the ONNX file',
    );
  }
  return bytes;
}

/** @throws ServingLoadError for bytes without a JSON object */
export function configIn(
  repository: Repository,
  path: string,
  bytes: Uint8Array,
): Record<string, unknown> {
  const content = jsonIn(repository, path, bytes);
  if (!isRecord(content)) {
    throw new ServingLoadError(
      `${path} of ${repository.name} holds ${formatValue(content)}, no object`,
    );
  }
  return content;
}

function jsonIn({ name }: Repository, path: string, bytes: Uint8Array): unknown {
  try {
    return JSON.parse(Buffer.from(bytes).toString()) as unknown;
  } catch (cause) {
    throw new ServingLoadError(`${path} of ${name} is no JSON: ${messageOf(cause)}`, { cause });
  }
}

async function readBytes(
  repository: Repository,
  path: string,
  fetching: Fetching,
): Promise<Uint8Array | undefined> {
  const found = await repository.fetch(path, fetching);
  return typeof found === 'string' ? readFile(found) : found;
}

/** Fetched ONNX file: its bytes, or its path. */
export interface OnnxFile {
  readonly file: string | Uint8Array;
  /** Paths of other files with its weights. */
  readonly weights: readonly string[];
  /** Hexadecimal digits, of all its files. */
  readonly sha256: string;
}

export async function onnxFile(file: string | Uint8Array): Promise<OnnxFile> {
  const places = typeof file === 'string' ? await externalFilesIn(file) : [];
  const weights = Array.from(places, (place) => resolve(dirname(file as string), place));
  return { file, weights, sha256: await sha256Of([file, ...weights]) };
}

async function sha256Of(files: readonly (string | Uint8Array)[]): Promise<string> {
  const hash = createHash('sha256');
  for (const file of files) {
    const pieces =
      typeof file === 'string' ? createReadStream(file, { highWaterMark: 2 ** 20 }) : [file];
    for await (const piece of pieces) {
      hash.update(piece as Uint8Array);
    }
  }
  return hash.digest('hex');
}

/**
 * Bytes or path of an ONNX file.
 *
 * @throws ServingLoadError if it has changed since it was fetched: its other files belong to the
 * one before
 */
export async function openable(
  name: string,
  { file, weights, sha256 }: OnnxFile,
): Promise<string | Uint8Array> {
  const files = [file, ...weights];
  if (typeof file === 'string' && (await sha256Of(files).catch(() => undefined)) !== sha256) {
    const beside = weights.length > 0 ? ' or one with its weights' : '';
    throw new ServingLoadError(
      `The file ${file}${beside} has changed since the serving started, and the tokenizer and the ` +
        `settings of ${name} belong to the one before; reload the serving`,
    );
  }
  return file;
}

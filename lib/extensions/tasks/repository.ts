import { existsSync } from 'node:fs';
import { readFile, stat } from 'node:fs/promises';
import { isAbsolute, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { InvalidServingError, ServingLoadError } from '../../index.js';
import {
  type Fetching,
  formatValue,
  isRecord,
  messageOf,
  remoteRepositoryOf,
} from '../../internal.js';

/**
 * A model's files by their path in its repository, such as `onnx/model.onnx`, `tokenizer.json` and
 * `config.json`: the bytes or the text of each.
 */
export type ModelFiles = Readonly<Record<string, Uint8Array | string>>;

/** A model with its tokenizer and configuration, laid out as in a repository of the Hub. */
export interface Repository {
  /** For logs and errors. */
  readonly name: string;
  /** The file's bytes, or its path if only its reader needs them; undefined without the file. */
  fetch(path: string, fetching: Fetching): Promise<Uint8Array | string | undefined>;
}

/**
 * The repository at a place: a folder, `hf:org/repo@revision`, or the files themselves.
 *
 * @param owner the serving, for errors
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

class Folder implements Repository {
  readonly name: string;

  constructor(owner: string, folder: string | URL) {
    this.name =
      folder instanceof URL || folder.startsWith('file:') ? fileURLToPath(folder) : resolve(folder);
    if (!existsSync(this.name)) {
      const hint =
        isAbsolute(String(folder)) || folder instanceof URL
          ? ''
          : ` (a relative path counts from ${process.cwd()})`;
      throw new InvalidServingError(`${owner}: there is no folder ${this.name}${hint}`);
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
 * Reads a JSON file; undefined if the repository doesn't have it.
 *
 * @throws ServingLoadError for text that is no JSON
 */
export async function readJsonFile(
  repository: Repository,
  path: string,
  fetching: Fetching,
): Promise<unknown> {
  const found = await repository.fetch(path, fetching);
  if (found === undefined) {
    return undefined;
  }
  const text =
    typeof found === 'string' ? await readFile(found, 'utf8') : Buffer.from(found).toString();
  try {
    return JSON.parse(text) as unknown;
  } catch (cause) {
    const name = `${path} of ${repository.name}`;
    throw new ServingLoadError(`${name} is no JSON: ${messageOf(cause)}`, { cause });
  }
}

/**
 * Reads a JSON file that holds an object; undefined if the repository doesn't have it.
 *
 * @throws ServingLoadError for other content
 */
export async function readConfig(
  repository: Repository,
  path: string,
  fetching: Fetching,
): Promise<Record<string, unknown> | undefined> {
  const content = await readJsonFile(repository, path, fetching);
  if (content !== undefined && !isRecord(content)) {
    throw new ServingLoadError(
      `${path} of ${repository.name} holds ${formatValue(content)}, no object`,
    );
  }
  return content;
}

/**
 * Reads a JSON file that the task needs.
 *
 * @throws ServingLoadError without it
 */
export async function needConfig(
  repository: Repository,
  path: string,
  fetching: Fetching,
): Promise<Record<string, unknown>> {
  const content = await readConfig(repository, path, fetching);
  if (!content) {
    throw new ServingLoadError(
      `${repository.name} has no ${path}, which the task needs; give a repository in the layout of ` +
        'the Hugging Face Hub, with config.json, tokenizer.json and the ONNX file',
    );
  }
  return content;
}

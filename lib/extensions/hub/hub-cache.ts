import { randomUUID } from 'node:crypto';
import {
  copyFile,
  mkdir,
  readFile,
  realpath,
  rename,
  rm,
  symlink,
  writeFile,
} from 'node:fs/promises';
import { existsSync } from 'node:fs';
import { homedir } from 'node:os';
import { basename, dirname, join, relative } from 'node:path';
import { isError, messageOf, ServingLoadError } from '../../doors/text.js';
import { sha256Of } from './download.js';

export interface CachedFile {
  readonly path: string;
  readonly commit: string;
  readonly sha256: string;
}

export const HUB_CACHE_ADVICE = 'HF_HUB_CACHE or HF_HOME';

export function cacheHome(): string {
  return process.env['XDG_CACHE_HOME'] || join(homedir(), '.cache');
}

/** Folder where the Hub's own tools cache files. */
export function hubCacheFolder(): string {
  const { HF_HUB_CACHE, HF_HOME } = process.env;
  return HF_HUB_CACHE || join(HF_HOME || join(cacheHome(), 'huggingface'), 'hub');
}

/**
 * Files of one repository, in the layout of the Hub's own tools, which can share them:
 * `blobs/<etag>`, `snapshots/<commit>/<path>` as links to blobs, `refs/<branch>` with a commit, and
 * `.no_exist/<commit>/<path>` for files that a commit lacks.
 */
export class HubCache {
  constructor(readonly folder: string) {}

  /** Deletes a file that changed since it was saved. */
  async find(
    revision: string,
    path: string,
    log: (line: string) => void,
  ): Promise<CachedFile | undefined> {
    const commit = isCommit(revision) ? revision : await this.commitOf(revision);
    if (commit === undefined) {
      return undefined;
    }
    const link = this.pathOf(commit, path);
    const sha256 = await sha256Of(link);
    if (sha256 === undefined) {
      return undefined;
    }
    const blob = await realpath(link);
    if (isSha256(basename(blob)) && basename(blob) !== sha256) {
      log(`deletes ${blob}, which was damaged: its SHA-256 is ${sha256}`);
      await Promise.all([rm(link, { force: true }), rm(blob, { force: true })]);
      return undefined;
    }
    return { path: link, commit, sha256 };
  }

  blobOf(etag: string): string {
    return join(this.folder, 'blobs', etag);
  }

  async link(commit: string, path: string, etag: string): Promise<string> {
    const link = this.pathOf(commit, path);
    const blob = this.blobOf(etag);
    await this.replace(link, (temporary) =>
      symlink(relative(dirname(link), blob), temporary).catch((error: unknown) => {
        // Few users may create links on Windows.
        if (isError(error) && 'code' in error && error.code === 'EPERM') {
          return copyFile(blob, temporary);
        }
        throw error;
      }),
    );
    return link;
  }

  async saveRef(revision: string, commit: string): Promise<void> {
    if (!isCommit(revision) && (await this.commitOf(revision)) !== commit) {
      await this.replace(this.refOf(revision), (temporary) => writeFile(temporary, commit));
    }
  }

  /** Notes that a commit lacks a file, for later starts. */
  async saveMissing(commit: string, path: string): Promise<void> {
    await this.replace(this.markOf(commit, path), (temporary) => writeFile(temporary, ''));
  }

  /** Believes a mark only beside files: another server may have left it. */
  async isMissing(revision: string, path: string): Promise<boolean> {
    const commit = isCommit(revision) ? revision : await this.commitOf(revision);
    return (
      commit !== undefined &&
      existsSync(this.markOf(commit, path)) &&
      existsSync(this.pathOf(commit, ''))
    );
  }

  private markOf(commit: string, path: string): string {
    return join(this.folder, '.no_exist', commit, ...path.split('/'));
  }

  private async commitOf(revision: string): Promise<string | undefined> {
    const text = await readFile(this.refOf(revision), 'utf8').catch(() => '');
    return isCommit(text.trim()) ? text.trim() : undefined;
  }

  private refOf(revision: string): string {
    return join(this.folder, 'refs', ...revision.split('/'));
  }

  private pathOf(commit: string, path: string): string {
    return join(this.folder, 'snapshots', commit, ...path.split('/'));
  }

  /** Atomic for other processes. */
  private async replace(path: string, make: (temporary: string) => Promise<void>): Promise<void> {
    const temporary = `${path}.${randomUUID()}`;
    try {
      await mkdir(dirname(path), { recursive: true });
      await make(temporary);
      await rename(temporary, path);
    } catch (cause) {
      await rm(temporary, { force: true }).catch(() => undefined);
      throw new ServingLoadError(
        `Cannot write to the cache folder ${dirname(path)}: ${messageOf(cause)}; choose another ` +
          `with ${HUB_CACHE_ADVICE}`,
        { cause },
      );
    }
  }
}

export function isCommit(text: string): boolean {
  return /^[\da-f]{40}$/.test(text);
}

export function isSha256(text: string): boolean {
  return /^[\da-f]{64}$/.test(text);
}

import { join } from 'node:path';
import { ServingLoadError, type Fetching } from '../../internal.js';
import { entryOf, getFile, type HubEntry } from './hub-api.js';
import {
  type CachedFile,
  HUB_CACHE_ADVICE,
  HubCache,
  hubCacheFolder,
  isCommit,
} from './hub-cache.js';
import type { HubModel } from './remote-model.js';
import { ATTEMPTS, retrying, TransientError } from './request.js';
import { save, sha256Of, sizeOf } from './save.js';

type HubFile = Pick<CachedFile, 'path' | 'commit'>;

/**
 * Fetches the file unless the Hub's cache on this machine has it.
 *
 * @throws TransientError when the Hub cannot be reached
 * @throws ServingLoadError
 */
export async function fetchFromHub(file: HubModel, fetching: Fetching): Promise<HubFile> {
  const folder = join(hubCacheFolder(), `models--${file.repo.replace('/', '--')}`);
  const found = await findOrFetch(file, new HubCache(folder), fetching);
  fetching.log(`has ${file.name} of commit ${found.commit} in ${folder}`);
  return found;
}

async function findOrFetch(file: HubModel, cache: HubCache, fetching: Fetching): Promise<HubFile> {
  const { name, path, revision, sha256 } = file;
  const { log, signal } = fetching;
  const cached = await cache.find(revision, path, log);
  const isRight = cached !== undefined && (sha256 === undefined || cached.sha256 === sha256);
  // Only a branch or tag without a hash may point to another file by now.
  if (isRight && (sha256 !== undefined || isCommit(revision) || isOffline())) {
    return cached;
  }
  if (isOffline()) {
    throw offline(file, cached);
  }
  let entry: HubEntry;
  try {
    entry = await retrying(isRight ? 1 : ATTEMPTS, signal, log, () => entryOf(file, signal));
  } catch (error) {
    if (isRight && error instanceof TransientError) {
      log(`uses ${name} as it was fetched before, since ${error.message}`);
      return cached;
    }
    throw error;
  }
  const found = await fetchEntry(file, entry, cache, fetching);
  await cache.saveRef(revision, entry.commit);
  return found;
}

async function fetchEntry(
  file: HubModel,
  { commit, etag, sha256: stated, size }: HubEntry,
  cache: HubCache,
  { log, signal }: Fetching,
): Promise<HubFile> {
  const { name, path, sha256 = stated } = file;
  if (stated !== undefined && stated !== sha256) {
    throw new ServingLoadError(
      `${path} has the SHA-256 ${stated} at commit ${commit}, and the definition says ${sha256}; ` +
        'correct sha256, or pin the commit that had this file: ...@<commit>',
    );
  }
  const known = await cache.find(commit, path, log);
  if (known && (sha256 === undefined || known.sha256 === sha256)) {
    return known;
  }
  const blob = cache.blobOf(etag);
  // Another commit may contain the same file.
  if (sha256 === undefined || (await sha256Of(blob)) !== sha256) {
    await retrying(ATTEMPTS, signal, log, async () => {
      const response = await getFile(file, commit, sha256 !== undefined, signal);
      await save(response, {
        name,
        path: blob,
        cacheAdvice: HUB_CACHE_ADVICE,
        sha256,
        expectedBy: file.sha256 === undefined ? 'the Hub' : 'the definition',
        size: size ?? sizeOf(response),
        log,
        signal,
      });
    });
  }
  return { path: await cache.link(commit, path, etag), commit };
}

function isOffline(): boolean {
  return /^(1|on|yes|true)$/i.test(process.env['HF_HUB_OFFLINE'] ?? '');
}

function offline({ path }: HubModel, cached: CachedFile | undefined): ServingLoadError {
  const found = cached ? `has only a file with the SHA-256 ${cached.sha256} of` : 'does not have';
  return new ServingLoadError(
    `the cache ${found} ${path}, and HF_HUB_OFFLINE forbids to fetch it; start once without ` +
      `HF_HUB_OFFLINE, or choose another cache with ${HUB_CACHE_ADVICE}`,
  );
}

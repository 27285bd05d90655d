import { join } from 'node:path';
import { type Fetching } from '../../doors/models.js';
import { ServingLoadError } from '../../doors/text.js';
import {
  type CachedFile,
  HUB_CACHE_ADVICE,
  HubCache,
  hubCacheFolder,
  isCommit,
  isSha256,
} from './hub-cache.js';
import { encodePath, type HubModel } from './remote-model.js';
import { ATTEMPTS, retrying, save, send, sha256Of, sizeOf, TransientError } from './download.js';

export type HubFile = Pick<CachedFile, 'path' | 'commit'>;

export class MissingFileError extends ServingLoadError {}

/**
 * Fetches the file unless this machine's Hub cache has it.
 *
 * @throws TransientError if the Hub is unreachable
 * @throws MissingFileError, or another ServingLoadError
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
  // Only a branch or tag without a hash may now point elsewhere.
  if (isRight && (sha256 !== undefined || isCommit(revision) || isOffline())) {
    return cached;
  }
  // A commit never gets the files that it lacks.
  if ((isOffline() || isCommit(revision)) && (await cache.isMissing(revision, path))) {
    throw missing(file);
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
    if (error instanceof MissingFileError && isCommit(revision)) {
      await cache.saveMissing(revision, path).catch(({ message }: Error) => log(message));
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

interface HubEntry {
  readonly commit: string;
  readonly etag: string;
  /** Only for large files, such as models. */
  readonly sha256: string | undefined;
  readonly size: number | undefined;
}

/**
 * Trimmed: files with secrets often end with a line break.
 *
 * @throws ServingLoadError without the text, which `fetch` would quote
 */
function token(): string | undefined {
  const text = process.env['HF_TOKEN']?.trim() || undefined;
  if (text !== undefined && !/^[!-~]+$/.test(text)) {
    throw new ServingLoadError(
      'HF_TOKEN is not a token: it has a space, a line break or another character that no token has; ' +
        'set it to the token alone',
    );
  }
  return text;
}

function endpoint(): string {
  return (process.env['HF_ENDPOINT'] || 'https://huggingface.co').replace(/\/+$/, '');
}

function addressOf({ repo, path }: HubModel, revision: string): string {
  return `${endpoint()}/${repo}/resolve/${encodeURIComponent(revision)}/${encodePath(path)}`;
}

/** @param allowsHttp true only if the caller checks the hash */
async function getFile(
  file: HubModel,
  commit: string,
  allowsHttp: boolean,
  signal: AbortSignal,
): Promise<Response> {
  const response = await send({
    url: addressOf(file, commit),
    method: 'GET',
    token: token(),
    allowsHttp,
    signal,
  });
  await checkStatus(response, file);
  return response;
}

/** Doesn't follow the redirect to the file store, which lacks these headers. */
async function entryOf(file: HubModel, signal: AbortSignal): Promise<HubEntry> {
  const response = await send(
    {
      url: addressOf(file, file.revision),
      method: 'HEAD',
      token: token(),
      allowsHttp: false,
      signal,
    },
    ({ headers }) => headers.has('x-repo-commit') && headers.has('x-linked-etag'),
  );
  await checkStatus(response, file);
  const { headers } = response;
  const commit = headers.get('x-repo-commit') ?? '';
  const etag = (headers.get('x-linked-etag') ?? headers.get('etag') ?? '').replaceAll(
    /^W\/|"/g,
    '',
  );
  // Both become file names.
  if (!isCommit(commit) || !/^[\w-]+$/.test(etag)) {
    throw new ServingLoadError(
      `${endpoint()} answered about ${file.name} without the headers of the Hub (X-Repo-Commit and ` +
        'X-Linked-ETag); check HF_ENDPOINT',
    );
  }
  const size = headers.get('x-linked-size');
  return {
    commit,
    etag,
    sha256: isSha256(etag) ? etag : undefined,
    size: size === null ? undefined : Number(size),
  };
}

async function checkStatus(response: Response, file: HubModel): Promise<void> {
  const { status, headers } = response;
  if (status < 400) {
    return;
  }
  await response.body?.cancel();
  const code = headers.get('x-error-code');
  if (status === 404 && code !== 'RevisionNotFound' && code !== 'RepoNotFound') {
    throw missing(file);
  }
  throw new ServingLoadError(
    `${endpoint()} answered ${status} to the request for ${file.name}: ` +
      remedyOf(status, code, file),
  );
}

function missing({ name, repo, path, revision }: HubModel): MissingFileError {
  return new MissingFileError(
    `${endpoint()} answered 404 to the request for ${name}: the repository ${repo} has no file ` +
      `"${path}" at "${revision}"; its files are listed at ${endpoint()}/${repo}/tree/${revision}`,
  );
}

function remedyOf(status: number, code: string | null, { repo, revision }: HubModel): string {
  const hasToken = token() !== undefined;
  if (status === 401) {
    return (
      `there is no repository ${repo}, or it is private or gated; check the name, and ` +
      (hasToken
        ? 'give HF_TOKEN a valid token that may read it'
        : 'set HF_TOKEN to a token that may read it')
    );
  }
  if (status === 403) {
    return (
      `the repository is gated; accept its terms at ${endpoint()}/${repo}, and set HF_TOKEN to a ` +
      'token of that account that may read it'
    );
  }
  if (status === 404 && code === 'RevisionNotFound') {
    return `the repository ${repo} has no branch, tag or commit "${revision}"`;
  }
  if (status === 404 && code === 'RepoNotFound') {
    return `there is no repository ${repo}, or it is private, which needs HF_TOKEN`;
  }
  return 'the request was refused';
}

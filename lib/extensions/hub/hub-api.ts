import { ServingLoadError } from '../../internal.js';
import { isCommit, isSha256 } from './hub-cache.js';
import { encodePath, type HubModel } from './remote-model.js';
import { send } from './request.js';

/** The Hub's answer about a file. */
export interface HubEntry {
  readonly commit: string;
  readonly etag: string;
  /** Only for files in large file storage, such as models. */
  readonly sha256: string | undefined;
  readonly size: number | undefined;
}

/**
 * Trimmed, because files with secrets often end with a line break.
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
export async function getFile(
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

/** Does not follow the redirect to the file store, which lacks these headers. */
export async function entryOf(file: HubModel, signal: AbortSignal): Promise<HubEntry> {
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
  throw new ServingLoadError(
    `${endpoint()} answered ${status} to the request for ${file.name}: ` +
      remedyOf(status, headers.get('x-error-code'), file),
  );
}

function remedyOf(status: number, code: string | null, { repo, path, revision }: HubModel): string {
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
  return status === 404
    ? `the repository ${repo} has no file "${path}" at "${revision}"; its files are listed at ` +
        `${endpoint()}/${repo}/tree/${revision}`
    : 'the request was refused';
}

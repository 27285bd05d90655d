import { createHash } from 'node:crypto';
import { join } from 'node:path';
import { ServingLoadError, type Fetching } from '../../internal.js';
import { cacheHome } from './hub-cache.js';
import type { WebModel } from './remote-model.js';
import { ATTEMPTS, retrying, send } from './request.js';
import { save, sha256Of, sizeOf } from './save.js';

/** The cache folder for models from web servers other than the Hub. */
export function webCacheFolder(): string {
  return join(cacheHome(), 'nestjs-serving', 'models');
}

/** By content hash if there is one, otherwise by address. */
export function webPathOf({ url, file, sha256 }: WebModel): string {
  const key = sha256 ?? `url-${createHash('sha256').update(url).digest('hex')}`;
  return join(webCacheFolder(), key, file);
}

/**
 * Fetches the file unless the cache has it.
 *
 * @throws TransientError when the server cannot be reached
 * @throws ServingLoadError
 */
export async function fetchFromWeb(
  { name, url, sha256 }: WebModel,
  path: string,
  { log, signal }: Fetching,
): Promise<void> {
  const found = await sha256Of(path);
  if (found !== undefined && (sha256 === undefined || found === sha256)) {
    return;
  }
  await retrying(ATTEMPTS, signal, log, async () => {
    const response = await send({ url, method: 'GET', allowsHttp: sha256 !== undefined, signal });
    const { status } = response;
    if (!response.ok) {
      await response.body?.cancel();
      throw new ServingLoadError(`${name} answered ${status}; ${remedyOf(status)}`);
    }
    await save(response, {
      name,
      path,
      cacheAdvice: 'XDG_CACHE_HOME',
      sha256,
      expectedBy: 'the definition',
      size: sizeOf(response),
      log,
      signal,
    });
  });
  log(`has ${name} in ${path}`);
}

function remedyOf(status: number): string {
  return status === 401 || status === 403
    ? 'the address needs a login, or has expired. No headers are sent: give an address that needs ' +
        'none, for example a presigned one'
    : 'check the address';
}

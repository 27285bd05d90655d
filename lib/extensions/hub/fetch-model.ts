import { dirname, join } from 'node:path';
import { externalFilesIn, type Fetching, type RemoteRepository } from '../../doors/models.js';
import { messageOf, ServingLoadError } from '../../doors/text.js';
import { cacheHome, hubCacheFolder } from './hub-cache.js';
import { fetchFromHub, type HubFile, MissingFileError } from './hub-file.js';
import {
  encodePath,
  type HubModel,
  type ModelAddress,
  type RepositoryAddress,
  pathBeside,
  type WebModel,
} from './remote-model.js';
import { ATTEMPTS, retrying, save, send, sha256Of, sizeOf, TransientError } from './download.js';
import { createHash } from 'node:crypto';

/**
 * Fetches the model and the files that it refers to, unless cached.
 *
 * @returns the model's path
 * @throws ServingLoadError
 */
export function fetchModel(model: ModelAddress, { signal, ...logs }: Fetching): Promise<string> {
  const folder = 'url' in model ? webCacheFolder() : hubCacheFolder();
  const key = JSON.stringify([model, folder, process.env['HF_ENDPOINT']]);
  return downloads.join(key, signal, async (shared) => {
    const fetching = { ...logs, signal: shared };
    try {
      return await ('url' in model ? fromWeb(model, fetching) : fromHub(model, fetching));
    } catch (cause) {
      shared.throwIfAborted();
      throw new ServingLoadError(
        `Cannot fetch the model ${model.name} to ${folder}: ${messageOf(cause)}` +
          (cause instanceof TransientError ? UNREACHABLE : ''),
        { cause },
      );
    }
  });
}

const UNREACHABLE =
  '. Check the address and the network of this machine (Node uses a proxy only with ' +
  'NODE_USE_ENV_PROXY=1, from version 24 on), or put the model into the cache before the start';

async function fromHub(model: HubModel, fetching: Fetching): Promise<string> {
  const { path } = await fetchWhole(model, fetching);
  return path;
}

/** Fetches a file with its external weights. */
async function fetchWhole(model: HubModel, fetching: Fetching): Promise<HubFile> {
  const file = await fetchFromHub(model, fetching);
  const locations = model.path.endsWith('.onnx') ? await externalFilesIn(file.path) : [];
  for (const location of locations) {
    const beside = checked(pathBeside(model.path, location), location);
    const name = `hf:${model.repo}/${beside}@${file.commit}`;
    const revision = file.commit;
    await fetchFromHub({ name, repo: model.repo, revision, path: beside }, fetching);
  }
  return file;
}

export class HubRepository implements RemoteRepository {
  /** Commit of all its files, once one is here. */
  private commit: string | undefined;

  constructor(private readonly address: RepositoryAddress) {}

  get name(): string {
    return this.address.name;
  }

  async fetch(path: string, { signal, ...logs }: Fetching): Promise<string | undefined> {
    const { name, repo, revision } = this.address;
    const model = { name: `hf:${repo}/${path}`, repo, revision: this.commit ?? revision, path };
    const key = JSON.stringify([model, hubCacheFolder(), process.env['HF_ENDPOINT']]);
    try {
      const file = await files.join(key, signal, (shared) =>
        fetchWhole(model, { ...logs, signal: shared }),
      );
      this.commit ??= file.commit;
      return file.path;
    } catch (cause) {
      signal.throwIfAborted();
      if (cause instanceof MissingFileError) {
        return undefined;
      }
      throw new ServingLoadError(
        `Cannot fetch ${path} of ${name} to ${hubCacheFolder()}: ${messageOf(cause)}` +
          (cause instanceof TransientError ? UNREACHABLE : ''),
        { cause },
      );
    }
  }
}

async function fromWeb(model: WebModel, fetching: Fetching): Promise<string> {
  const path = webPathOf(model);
  await fetchFromWeb(model, path, fetching);
  for (const location of await externalFilesIn(path)) {
    const beside = checked(pathBeside('', location), location);
    if (model.sha256 !== undefined) {
      throw new ServingLoadError(
        `it keeps weights in another file, ${location}, whose content sha256 does not pin; ` +
          'export it as one file, fetch it from the Hub with hf:, put it into the image of the ' +
          'application, or accept any content with sha256: false',
      );
    }
    const url = new URL(encodePath(beside), model.url);
    const name = `${url.origin}${url.pathname}`;
    await fetchFromWeb({ ...model, name, url: url.href }, join(dirname(path), beside), fetching);
  }
  return path;
}

function checked(beside: string | undefined, location: string): string {
  if (beside === undefined) {
    throw new ServingLoadError(`it refers to the file ${location} outside of its own folder`);
  }
  return beside;
}

/** Shares work by key, and aborts it when the last caller leaves. */
export class SharedWork<T> {
  private readonly running = new Map<string, Running<T>>();

  join(key: string, signal: AbortSignal, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    signal.throwIfAborted();
    const running = this.running.get(key) ?? this.start(key, work);
    running.callers++;
    return new Promise((resolve, reject) => {
      const leave = (): void => {
        running.callers--;
        if (running.callers > 0) {
          reject(signal.reason as Error);
        } else {
          // Settles only when the work ends, since it may have files to delete.
          this.forget(key, running);
          running.controller.abort(signal.reason);
        }
      };
      signal.addEventListener('abort', leave);
      running.result
        .finally(() => signal.removeEventListener('abort', leave))
        .then(resolve, reject);
    });
  }

  private start(key: string, work: (signal: AbortSignal) => Promise<T>): Running<T> {
    const controller = new AbortController();
    const running = { controller, callers: 0, result: work(controller.signal) };
    this.running.set(key, running);
    const end = (): void => this.forget(key, running);
    running.result.then(end, end);
    return running;
  }

  private forget(key: string, running: Running<T>): void {
    if (this.running.get(key) === running) {
      this.running.delete(key);
    }
  }
}

const downloads = new SharedWork<string>();
const files = new SharedWork<HubFile>();

interface Running<T> {
  readonly controller: AbortController;
  readonly result: Promise<T>;
  callers: number;
}

function webCacheFolder(): string {
  return join(cacheHome(), 'nestjs-serving', 'models');
}

/** Path by content hash if known, otherwise by address. */
function webPathOf({ url, file, sha256 }: WebModel): string {
  const key = sha256 ?? `url-${createHash('sha256').update(url).digest('hex')}`;
  return join(webCacheFolder(), key, file);
}

/**
 * Does nothing if the file is cached.
 *
 * @throws TransientError if the server is unreachable
 * @throws ServingLoadError
 */
async function fetchFromWeb(
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

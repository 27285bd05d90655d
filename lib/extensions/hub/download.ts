import { createHash, randomUUID } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { type FileHandle, mkdir, open, readdir, rename, rm, stat } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { formatBytes, isError, messageOf, ServingLoadError } from '../../doors/text.js';
import { setTimeout as delay } from 'node:timers/promises';

export class TransientError extends Error {
  override readonly name = 'TransientError';
}

export interface FetchRequest {
  readonly url: string;
  readonly method: 'GET' | 'HEAD';
  /** Sent only to the origin of `url`. */
  readonly token?: string | undefined;
  /** Follows redirects from https to http; safe if a hash is checked. */
  readonly allowsHttp: boolean;
  readonly signal: AbortSignal;
}

const MAX_REDIRECTS = 10;

/** Milliseconds without data until the connection counts as broken. */
export const STALLED = 30_000;

/**
 * Follows redirects unless `isFinal` returns true.
 *
 * @throws TransientError if the server is unreachable or overloaded
 */
export async function send(
  { url, method, token, allowsHttp, signal }: FetchRequest,
  isFinal: (response: Response) => boolean = () => false,
): Promise<Response> {
  const { origin } = new URL(url);
  let address = new URL(url);
  for (let redirects = 0; redirects <= MAX_REDIRECTS; redirects++) {
    const headers: Record<string, string> = { 'accept-encoding': 'identity' };
    if (token && address.origin === origin) {
      headers['authorization'] = `Bearer ${token}`;
    }
    const response = await fetchOnce(address, { method, headers, redirect: 'manual', signal });
    const location = response.headers.get('location');
    if (location === null || response.status < 300 || response.status > 399 || isFinal(response)) {
      if (response.status >= 500 || response.status === 429 || response.status === 408) {
        await response.body?.cancel();
        throw new TransientError(`${address.origin} answered ${response.status}`);
      }
      return response;
    }
    await response.body?.cancel();
    address = redirected(address, location, allowsHttp);
  }
  throw new ServingLoadError(`${origin} redirected more than ${MAX_REDIRECTS} times`);
}

function redirected(from: URL, location: string, allowsHttp: boolean): URL {
  const to = URL.canParse(location, from.href) ? new URL(location, from) : undefined;
  const isAllowed =
    to?.protocol === 'https:' ||
    (to?.protocol === 'http:' && (allowsHttp || from.protocol === 'http:'));
  if (!to || !isAllowed) {
    throw new ServingLoadError(
      `${from.origin} redirected to ${to?.origin ?? 'an invalid address'}, which is not encrypted`,
    );
  }
  return to;
}

async function fetchOnce(
  address: URL,
  { signal, ...options }: RequestInit & { readonly signal: AbortSignal },
): Promise<Response> {
  const stalled = new AbortController();
  const timer = setTimeout(() => stalled.abort(), STALLED);
  try {
    const both = AbortSignal.any([signal, stalled.signal]);
    return await fetch(address.href, { ...options, signal: both });
  } catch (error) {
    signal.throwIfAborted();
    const reason = stalled.signal.aborted
      ? `no answer came for ${STALLED / 1000} s`
      : reasonOf(error);
    throw new TransientError(`${address.origin} cannot be reached: ${reason}`, { cause: error });
  } finally {
    clearTimeout(timer);
  }
}

/** Reason of a `fetch` error, which is in its cause. */
export function reasonOf(error: unknown): string {
  const { cause, code } = error as { readonly cause?: unknown; readonly code?: unknown };
  return cause === undefined ? messageOf(error) || String(code) : reasonOf(cause);
}

export const ATTEMPTS = 4;

/** Milliseconds before the second attempt; doubles each time. */
const FIRST_PAUSE = 500;

/** Retries after a {@link TransientError}. */
export async function retrying<T>(
  attempts: number,
  signal: AbortSignal,
  log: (line: string) => void,
  work: () => Promise<T>,
): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof TransientError) || attempt >= attempts) {
        throw error;
      }
      const pause = FIRST_PAUSE * 2 ** (attempt - 1);
      log(
        `waits for its model: ${error.message}; attempt ${attempt + 1} of ${attempts} in ${pause} ms`,
      );
      await delay(pause, undefined, { signal }).catch(() => signal.throwIfAborted());
    }
  }
}

export interface SaveOptions {
  readonly name: string;
  readonly path: string;
  readonly cacheAdvice: string;
  readonly sha256?: string | undefined;
  readonly expectedBy?: string;
  readonly size?: number | undefined;
  readonly log: (line: string) => void;
  readonly signal: AbortSignal;
}

/**
 * Saves only a complete response with the right hash.
 *
 * @throws TransientError if the connection breaks
 * @throws ServingLoadError for another hash, or an unwritable file
 */
export async function save(response: Response, options: SaveOptions): Promise<void> {
  const { name, path, size, log, signal } = options;
  const temporary = `${path}.${randomUUID()}.incomplete`;
  const stalled = new AbortController();
  const timer = setTimeout(() => stalled.abort(), STALLED);
  log(`downloads ${name}${size === undefined ? '' : ` (${formatBytes(size)})`}`);
  const progress = new Progress(name, size, log);
  const hash = createHash('sha256');
  let received = 0;
  let file: FileHandle | undefined;
  try {
    await makeFolder(dirname(path));
    file = await open(temporary, 'wx');
    await pipeline(
      Readable.fromWeb(response.body as Parameters<typeof Readable.fromWeb>[0]),
      async function* (chunks: AsyncIterable<Uint8Array>) {
        for await (const chunk of chunks) {
          timer.refresh();
          hash.update(chunk);
          received += chunk.byteLength;
          if (size !== undefined && received > size) {
            throw new ServingLoadError(
              `${basename(name)} is larger than the ${size} bytes that its server states; the download was ` +
                'ended and deleted',
            );
          }
          progress.add(chunk.byteLength);
          yield chunk;
        }
      },
      file.createWriteStream({ flush: true }),
      { signal: AbortSignal.any([signal, stalled.signal]) },
    );
    check(hash.digest('hex'), received, options);
    await rename(temporary, path);
  } catch (error) {
    // A second error would hide the first one. The stream may still write.
    await file?.close().catch(() => undefined);
    await rm(temporary, { force: true }).catch(() => undefined);
    if (!response.bodyUsed) {
      await response.body?.cancel();
    }
    signal.throwIfAborted();
    throw failureOf(error, stalled.signal.aborted, received, options);
  } finally {
    clearTimeout(timer);
  }
}

/** Bytes; undefined if compressed or unknown. */
export function sizeOf({ headers }: Response): number | undefined {
  const length = headers.get('content-length');
  return length === null || headers.has('content-encoding') ? undefined : Number(length);
}

function check(hash: string, received: number, options: SaveOptions): void {
  const { name, size, sha256, expectedBy } = options;
  if (size !== undefined && received !== size) {
    throw new TransientError(`${received} of ${size} bytes arrived`);
  }
  if (sha256 !== undefined && hash !== sha256) {
    throw new ServingLoadError(
      `${basename(name)} arrived with the SHA-256 ${hash}, and ${expectedBy} says ${sha256}: the file was ` +
        'changed, or damaged on its way. It was deleted',
    );
  }
}

function failureOf(
  error: unknown,
  isStalled: boolean,
  received: number,
  { path, cacheAdvice, size }: SaveOptions,
): unknown {
  if (error instanceof ServingLoadError || error instanceof TransientError) {
    return error;
  }
  // Unlike `fetch`, the file system names its system call.
  if (isError(error) && 'syscall' in error) {
    const needed = size === undefined ? '' : ` (${size} bytes)`;
    return new ServingLoadError(
      `The file${needed} cannot be written to the cache folder ${dirname(path)}: ` +
        `${messageOf(error)}; make room or choose another folder with ${cacheAdvice}`,
      { cause: error },
    );
  }
  const reason = isStalled ? `no byte came for ${STALLED / 1000} s` : reasonOf(error);
  return new TransientError(`The connection broke after ${received} bytes: ${reason}`, {
    cause: error,
  });
}

/** Milliseconds without a write, after which the process was killed. */
const ABANDONED = 3_600_000;

/** Also deletes killed processes' downloads. */
async function makeFolder(folder: string): Promise<void> {
  await mkdir(folder, { recursive: true });
  for (const file of await readdir(folder)) {
    if (/\.[\da-f-]{36}\.incomplete$/.test(file)) {
      const { mtimeMs } = await stat(join(folder, file)).catch(() => ({ mtimeMs: Infinity }));
      if (Date.now() - mtimeMs > ABANDONED) {
        await rm(join(folder, file), { force: true });
      }
    }
  }
}

/** Hexadecimal digits; undefined without a file. */
export async function sha256Of(path: string): Promise<string | undefined> {
  const hash = createHash('sha256');
  try {
    for await (const piece of createReadStream(path, { highWaterMark: 1 << 20 })) {
      hash.update(piece as Buffer);
    }
  } catch (cause) {
    if (
      isError(cause) &&
      'code' in cause &&
      (cause.code === 'ENOENT' || cause.code === 'ENOTDIR')
    ) {
      return undefined;
    }
    throw new ServingLoadError(
      `Cannot read ${basename(path)} in the cache folder ${dirname(path)}: ${messageOf(cause)}`,
      { cause },
    );
  }
  return hash.digest('hex');
}

const INTERVAL = 10_000;

const LEAST_INTERVAL = 1000;

/** Logs a line per 10 %, at most one per second and at least one per 10 s. */
export class Progress {
  private readonly startedAt = Date.now();
  private loggedAt = this.startedAt;
  private loggedTenths = 0;
  private received = 0;

  constructor(
    private readonly name: string,
    private readonly size: number | undefined,
    private readonly log: (line: string) => void,
  ) {}

  add(bytes: number): void {
    this.received += bytes;
    const { received, size } = this;
    const now = Date.now();
    const tenths = size ? Math.floor((10 * received) / size) : 0;
    const passed = now - this.loggedAt;
    if (passed >= INTERVAL || (passed >= LEAST_INTERVAL && tenths > this.loggedTenths)) {
      this.loggedAt = now;
      this.loggedTenths = tenths;
      const share = size ? `${Math.floor((100 * received) / size)} % of ${formatBytes(size)}` : '';
      const seconds = Math.round((now - this.startedAt) / 1000);
      this.log(`downloads ${this.name}: ${share || formatBytes(received)} after ${seconds} s`);
    }
  }
}

import { setTimeout as delay } from 'node:timers/promises';
import { messageOf, ServingLoadError } from '../../internal.js';

export class TransientError extends Error {
  override readonly name = 'TransientError';
}

export interface FetchRequest {
  readonly url: string;
  readonly method: 'GET' | 'HEAD';
  /** Sent only to the origin of `url`. */
  readonly token?: string | undefined;
  /** Follows redirects from https to http: safe if a hash is checked. */
  readonly allowsHttp: boolean;
  readonly signal: AbortSignal;
}

const MAX_REDIRECTS = 10;

/** Milliseconds without data: the connection counts as broken. */
export const STALLED = 30_000;

/**
 * Follows redirects unless `isFinal` returns true.
 *
 * @throws TransientError if the server can't be reached or is overloaded
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

/** `fetch` puts the reason into its error's cause. */
export function reasonOf(error: unknown): string {
  const { cause, code } = error as { readonly cause?: unknown; readonly code?: unknown };
  return cause === undefined ? messageOf(error) || String(code) : reasonOf(cause);
}

export const ATTEMPTS = 4;

/** Milliseconds before the second attempt; doubles with each further one. */
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

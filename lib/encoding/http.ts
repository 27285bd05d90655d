import type { ServerResponse } from 'node:http';

/**
 * The path in a request's target, as a router reads it: the target may have a scheme and host, and
 * a fragment (https://datatracker.ietf.org/doc/html/rfc9112#section-3.2).
 */
export function pathOfTarget(target: string): string {
  return target.replace(/^https?:\/\/[^/?#]*/i, '').split(/[?#]/, 1)[0]!;
}

/** An Express response, or a Fastify reply around it. */
export type PlatformResponse =
  | (ServerResponse & { readonly raw?: undefined })
  | {
      readonly raw: ServerResponse;
      hijack(): unknown;
      getHeaders(): Readonly<Record<string, string | number | string[] | undefined>>;
    };

/** Node's own response, for replies that we write ourselves. Keeps headers set before, as by CORS. */
export function rawOf(response: PlatformResponse): ServerResponse {
  if (response.raw === undefined) {
    return response;
  }
  response.hijack();
  for (const [name, value] of Object.entries(response.getHeaders())) {
    if (value !== undefined) {
      response.raw.setHeader(name, value);
    }
  }
  return response.raw;
}

import type { IncomingMessage } from 'node:http';
import type { HttpServer } from '@nestjs/common';
import { callsBehind, routesBehind } from './routes.js';

/** A content type without a body parser. */
const PRIVATE_TYPE = 'application/x-inference-protocol';

interface FastifyInstance {
  addHook(
    name: 'onRequest',
    hook: (request: { readonly raw: IncomingMessage }, reply: unknown, done: () => void) => void,
  ): void;
  addHook(name: 'onRoute', hook: (route: FastifyRoute) => void): void;
  addContentTypeParser(
    type: string,
    parser: (request: unknown, payload: unknown, done: (error: null) => void) => void,
  ): void;
  readonly initialConfig: RouterOptions & { readonly routerOptions?: RouterOptions };
  route(route: FastifyRoute): void;
}

interface RouterOptions {
  readonly ignoreTrailingSlash?: boolean;
}

interface FastifyRoute {
  readonly method: string | readonly string[];
  readonly url: string;
}

/**
 * Hides bodies from the application's parsers, which would refuse large ones and those without a
 * content type. Call it before initialisation.
 *
 * @param prefixes the routes' prefixes, read with the first request
 */
export function leaveBodiesUnparsed(adapter: HttpServer, prefixes: () => readonly string[]): void {
  let calls: RegExp | undefined;
  const hideType = (request: IncomingMessage): void => {
    if (request.method === 'POST') {
      calls ??= callsBehind(prefixes());
      if (calls.test(request.url ?? '')) {
        request.headers['content-type'] = PRIVATE_TYPE;
      }
    }
  };
  if (adapter.getType() === 'fastify') {
    const fastify = adapter.getInstance() as FastifyInstance;
    fastify.addHook('onRequest', ({ raw }, _reply, done) => {
      hideType(raw);
      done();
    });
    // As on Express, a path may end with a slash. Fastify adds the HEAD routes itself.
    const { initialConfig } = fastify;
    if (!initialConfig.routerOptions?.ignoreTrailingSlash && !initialConfig.ignoreTrailingSlash) {
      fastify.addHook('onRoute', (route) => {
        if (route.method !== 'HEAD' && routesBehind(prefixes()).test(route.url)) {
          fastify.route({ ...route, url: `${route.url}/` });
        }
      });
    }
    fastify.addContentTypeParser(PRIVATE_TYPE, (_request, _payload, done) => done(null));
  } else {
    adapter.use((request: IncomingMessage, _response: unknown, next: () => void) => {
      hideType(request);
      next();
    });
  }
}

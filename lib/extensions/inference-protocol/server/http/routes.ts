import {
  applyDecorators,
  type ArgumentsHost,
  Catch,
  Controller,
  type ExceptionFilter,
  type HttpServer,
  Logger,
  SetMetadata,
  UseFilters,
  VERSION_NEUTRAL,
} from '@nestjs/common';
import { pathOfTarget, type PlatformResponse } from '../../../../encoding/http.js';
import { errorAnswer } from '../error-answers.js';
import { InferenceServer } from '../inference-server.js';
import { answerWith, jsonReply } from './send-reply.js';
import type { IncomingMessage } from 'node:http';

/** The protocol has its own OpenAPI document. */
const EXCLUDED_FROM_OPENAPI = 'swagger/apiExcludeController';

export function ProtocolController(path: string): ClassDecorator {
  return applyDecorators(
    Controller({ path: `v2${path}`, version: VERSION_NEUTRAL }),
    UseFilters(ProtocolExceptionFilter),
    SetMetadata(EXCLUDED_FROM_OPENAPI, [true]),
  );
}

export function ofModel(call: string): string[] {
  return ['models/:model', 'models/:model/versions/:version'].map((path) => path + call);
}

const CALLS = [
  'models/[^/]+/(?:versions/[^/]+/)?infer',
  'repository/(?:index|models/[^/]+/(?:un)?load)',
  '(?:system|cuda)sharedmemory/(?:region/[^/]+/)?(?:un)?register',
];

export function callsBehind(prefixes: readonly string[]): RegExp {
  return new RegExp(`^${behind(prefixes)}/v2/(?:${CALLS.join('|')})/?$`, 'i');
}

/** Has no trailing slash. */
const ROUTE =
  '/v2(?:/(?:health|models|repository|systemsharedmemory|cudasharedmemory)/(?:[^?]*[^/?])?)?';

export function routesBehind(prefixes: readonly string[]): RegExp {
  return new RegExp(`^${behind(prefixes)}${ROUTE}$`);
}

function behind(prefixes: readonly string[]): string {
  // A prefix may have parameters, such as `:tenant/api`.
  return prefixes
    .map((prefix) => prefix.split('/').filter(Boolean))
    .map((names) => names.map((name) => `/${name.startsWith(':') ? '[^/?]+' : literal(name)}`))
    .map((names) => `(?:${names.join('')})?`)
    .join('');
}

function literal(text: string): string {
  return text.replaceAll(/[^\w~-]/g, String.raw`\$&`);
}

@Catch()
class ProtocolExceptionFilter implements ExceptionFilter {
  private readonly logger = new Logger('InferenceProtocol');

  constructor(private readonly server: InferenceServer) {}

  async catch(error: unknown, host: ArgumentsHost): Promise<void> {
    const { status, message, retryAfter, isFault } = errorAnswer(error);
    if (isFault) {
      this.logger.error(error);
    }
    const response = host.switchToHttp().getResponse<PlatformResponse>();
    const { headers, chunks } = jsonReply({ error: message });
    const retry = retryAfter === undefined ? undefined : { 'retry-after': String(retryAfter) };
    await answerWith(response, status, { headers: { ...headers, ...retry }, chunks }, this.server);
  }
}

/** A content type without a body parser. */
export const PRIVATE_TYPE = 'application/x-inference-protocol';

interface FastifyInstance {
  addHook(
    name: 'onRequest',
    hook: (request: FastifyRequest, reply: unknown, done: () => void) => void,
  ): void;
  addHook(name: 'onRoute', hook: (route: FastifyRoute) => void): void;
  addContentTypeParser(
    type: string,
    parser: (request: unknown, payload: unknown, done: (error: null) => void) => void,
  ): void;
  readonly initialConfig: RouterOptions & { readonly routerOptions?: RouterOptions };
  route(route: FastifyRoute): void;
}

interface FastifyRequest {
  readonly raw: IncomingMessage;
  /** The pattern; undefined without a route. */
  readonly routeOptions: { readonly url?: string };
}

interface RouterOptions {
  readonly ignoreTrailingSlash?: boolean;
}

interface FastifyRoute {
  readonly method: string | readonly string[];
  readonly url: string;
}

/**
 * Hides bodies from the application's parsers, which refuse large ones and missing content types.
 * Call it before initialisation.
 *
 * @param prefixes read with the first request
 */
export function leaveBodiesUnparsed(adapter: HttpServer, prefixes: () => readonly string[]): void {
  let calls: RegExp | undefined;
  const hideType = (request: IncomingMessage, route: () => string): void => {
    if (request.method === 'POST') {
      calls ??= callsBehind(prefixes());
      if (calls.test(route())) {
        request.headers['content-type'] = PRIVATE_TYPE;
      }
    }
  };
  if (adapter.getType() === 'fastify') {
    const fastify = adapter.getInstance() as FastifyInstance;
    fastify.addHook('onRequest', ({ raw, routeOptions }, _reply, done) => {
      hideType(raw, () => routeOptions.url ?? pathOfTarget(raw.url ?? ''));
      done();
    });
    // Paths may end with a slash, as on Express. Fastify adds the HEAD routes itself.
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
      hideType(request, () => pathOfTarget(request.url ?? ''));
      next();
    });
  }
}

import {
  applyDecorators,
  type ArgumentsHost,
  Catch,
  Controller,
  type ExceptionFilter,
  Logger,
  SetMetadata,
  UseFilters,
  VERSION_NEUTRAL,
} from '@nestjs/common';
import { errorAnswer } from '../error-answers.js';
import { InferenceServer } from '../inference-server.js';
import { answerWith, type PlatformResponse } from './send-reply.js';
import { jsonReply } from './write-reply.js';

/** Excluded from `@nestjs/swagger`: the protocol has its own OpenAPI document. */
const EXCLUDED_FROM_OPENAPI = 'swagger/apiExcludeController';

/** Outside the application's versioning. */
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

const CALL =
  '/v2/(?:models/[^/?]+/(?:versions/[^/?]+/)?infer|repository/(?:index|models/[^/?]+/(?:un)?load))';

/** Matches URLs of calls with a body. */
export function callsBehind(prefixes: readonly string[]): RegExp {
  return new RegExp(`^${behind(prefixes)}${CALL}/?(?:\\?|$)`, 'i');
}

/** Without a trailing slash. */
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

/** Answers errors as `{ "error": "..." }`. */
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

import {
  applyDecorators,
  Controller,
  SetMetadata,
  UseFilters,
  VERSION_NEUTRAL,
} from '@nestjs/common';
import { ProtocolExceptionFilter } from './protocol-exception.filter.js';

/** `@nestjs/swagger` leaves such controllers out: the protocol has a document of its own. */
const EXCLUDED_FROM_OPENAPI = 'swagger/apiExcludeController';

/** A controller of the protocol, whose paths have no version of the application. */
export function ProtocolController(path: string): ClassDecorator {
  return applyDecorators(
    Controller({ path: `v2${path}`, version: VERSION_NEUTRAL }),
    UseFilters(ProtocolExceptionFilter),
    SetMetadata(EXCLUDED_FROM_OPENAPI, [true]),
  );
}

/** The paths of a call of a model, with and without a version. */
export function ofModel(call: string): string[] {
  return ['models/:model', 'models/:model/versions/:version'].map((path) => path + call);
}

const CALL =
  '/v2/(?:models/[^/?]+/(?:versions/[^/?]+/)?infer|repository/(?:index|models/[^/?]+/(?:un)?load))';

/** Matches the URLs of calls with a body, in an application whose routes have these prefixes. */
export function callsBehind(prefixes: readonly string[]): RegExp {
  return new RegExp(`^${behind(prefixes)}${CALL}/?(?:\\?|$)`, 'i');
}

/** The path of every route of the protocol, without a slash at its end. */
const ROUTE =
  '/v2(?:/(?:health|models|repository|systemsharedmemory|cudasharedmemory)/(?:[^?]*[^/?])?)?';

/** Matches the paths of all routes of the protocol in such an application. */
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

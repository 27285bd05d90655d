import {
  type CallHandler,
  createParamDecorator,
  type ExecutionContext,
  Injectable,
  type NestInterceptor,
} from '@nestjs/common';
import type { ApplicationConfig } from '@nestjs/core';
import type { Observable } from 'rxjs';
import {
  type CallOptions,
  currentContext,
  inContext,
  RequestCaller,
} from '../core/context/call-context.js';
import { InvalidServingError } from '../core/errors.js';
import type { Serving } from '../core/serving/serving.js';
import { HttpCaller } from './http-caller.js';

export function callerOf(context: ExecutionContext): RequestCaller {
  const origin = context.getType();
  return origin === 'http' ? new HttpCaller(context) : new RequestCaller(origin);
}

export const HandlerCaller = createParamDecorator((_: unknown, context: ExecutionContext) =>
  callerOf(context),
);

export function optionsOf(caller: RequestCaller | undefined): CallOptions {
  return caller
    ? { origin: caller.origin, ...(caller instanceof HttpCaller && { signal: caller }) }
    : {};
}

/**
 * The HTTP request's `AbortSignal`, which aborts when the client closes its connection before the
 * answer. Pass it to calls that should end then, of servings or of `fetch`. Other transports don't
 * report that clients leave, so it never aborts there.
 *
 * ```ts
 * read(@Param('text') text: string, @RequestSignal() signal: AbortSignal) {
 *   return this.servings.batchedRun('summary', text, { signal });
 * }
 * ```
 */
export const RequestSignal: () => ParameterDecorator = createParamDecorator(
  (_: unknown, context: ExecutionContext): AbortSignal =>
    (currentContext() ?? callerOf(context)).signal ?? new AbortController().signal,
);

@Injectable()
class RequestContextInterceptor implements NestInterceptor {
  intercept(context: ExecutionContext, next: CallHandler): Observable<unknown> {
    // Nest runs the handler in this async context, wherever the Observable is subscribed.
    return inContext(callerOf(context), () => next.handle());
  }
}

/** Costs time on every route. Call this before Nest binds handlers to interceptors. */
export function registerRequestContext(application: ApplicationConfig): void {
  if (!hasRequestContext(application)) {
    application.addGlobalInterceptor(new RequestContextInterceptor());
  }
}

/** @throws InvalidServingError when the serving or method needs origins, but calls have none */
export function requireOrigins(
  application: ApplicationConfig,
  { name, local }: Pick<Serving, 'name' | 'local'>,
): void {
  if (local?.profile.separatesOrigins && !hasRequestContext(application)) {
    throw new InvalidServingError(
      `Serving "${name}" has queue.separateOrigins, and the calls of this application have no ` +
        'origin; write ServingModule.forRoot({ requestContext: true, ... })',
    );
  }
}

function hasRequestContext(application: ApplicationConfig): boolean {
  return application
    .getGlobalInterceptors()
    .some((interceptor) => interceptor instanceof RequestContextInterceptor);
}

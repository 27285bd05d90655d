import {
  type CallHandler,
  type ExecutionContext,
  Injectable,
  type NestInterceptor,
} from '@nestjs/common';
import type { ApplicationConfig } from '@nestjs/core';
import type { Observable } from 'rxjs';
import { inContext } from './caller-context.js';
import { callerOf } from './request-caller.js';
import { InvalidServingError } from '../errors.js';
import type { Serving } from '../serving/serving.js';

/** Gives a handler's calls its request's context. */
@Injectable()
export class RequestContextInterceptor implements NestInterceptor {
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

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

/** Gives all calls that a handler makes the context of its request. */
@Injectable()
export class RequestContextInterceptor implements NestInterceptor {
  intercept(context: ExecutionContext, next: CallHandler): Observable<unknown> {
    // Nest runs the handler in the async context of `intercept`, wherever the Observable is
    // subscribed.
    return inContext(callerOf(context), () => next.handle());
  }
}

/**
 * Registers the context of every request of the application. Call it before Nest binds handlers to
 * interceptors. Every route pays for it.
 */
export function registerRequestContext(application: ApplicationConfig): void {
  if (!hasRequestContext(application)) {
    application.addGlobalInterceptor(new RequestContextInterceptor());
  }
}

/** @throws InvalidServingError when the serving or method needs origins, and calls have none */
export function requireOrigins(
  application: ApplicationConfig,
  { name, separatesOrigins }: { readonly name: string; readonly separatesOrigins: boolean },
): void {
  if (separatesOrigins && !hasRequestContext(application)) {
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

import type { CallHandler, ExecutionContext, NestInterceptor } from '@nestjs/common';
import type { ApplicationConfig } from '@nestjs/core';
import { Observable } from 'rxjs';
import { withOrigin } from '../serving/origin.js';

/** Lets servings and `@Batched()` methods know what kind of request their calls come from. */
export class OriginInterceptor implements NestInterceptor {
  intercept(context: ExecutionContext, next: CallHandler): Observable<unknown> {
    return new Observable((subscriber) => withOrigin(context.getType(), () => next.handle().subscribe(subscriber)));
  }
}

/** Has every request of the application tell its kind; to be called before Nest binds its handlers to interceptors. */
export function tellOrigins(application: ApplicationConfig): void {
  if (!application.getGlobalInterceptors().some((interceptor) => interceptor instanceof OriginInterceptor)) {
    application.addGlobalInterceptor(new OriginInterceptor());
  }
}

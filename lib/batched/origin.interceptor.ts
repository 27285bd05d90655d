import type { CallHandler, ExecutionContext, NestInterceptor } from '@nestjs/common';
import { Observable } from 'rxjs';
import { withOrigin } from '../serving/origin.js';

/** Lets servings and `@Batched()` methods know what kind of request their calls come from. */
export class OriginInterceptor implements NestInterceptor {
  intercept(context: ExecutionContext, next: CallHandler): Observable<unknown> {
    return new Observable((subscriber) => withOrigin(context.getType(), () => next.handle().subscribe(subscriber)));
  }
}

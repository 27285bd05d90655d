import type { CallHandler, ExecutionContext, NestInterceptor } from '@nestjs/common';
import type { HttpAdapterHost } from '@nestjs/core';
import { isServingError } from 'nestjs-serving';
import { catchError, type Observable, throwError } from 'rxjs';

/** Tells clients the code of an error, which is not for strangers, in a header. */
export class CodeInterceptor implements NestInterceptor {
  constructor(private readonly host: HttpAdapterHost) {}

  intercept(context: ExecutionContext, next: CallHandler): Observable<unknown> {
    return next.handle().pipe(
      catchError((error: unknown) => {
        const response: unknown = context.switchToHttp().getResponse();
        const { httpAdapter } = this.host;
        if (isServingError(error) && !httpAdapter.isHeadersSent(response)) {
          httpAdapter.setHeader(response, 'x-code', error.code);
        }
        return throwError(() => error);
      }),
    );
  }
}

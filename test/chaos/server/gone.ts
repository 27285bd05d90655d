import type { ServerResponse } from 'node:http';
import { createParamDecorator, type ExecutionContext } from '@nestjs/common';
import { CallCancelledError } from 'nestjs-serving';

/** A signal that aborts when the client has left before it had its answer. */
export const Gone = createParamDecorator((_: unknown, context: ExecutionContext): AbortSignal => {
  const response = context.switchToHttp().getResponse<ServerResponse & { readonly raw?: ServerResponse }>();
  const raw = response.raw ?? response;
  const left = new AbortController();
  raw.once('close', () => raw.writableFinished || left.abort(new CallCancelledError('The client has left')));
  return left.signal;
});

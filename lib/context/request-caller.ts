import { createParamDecorator, type ExecutionContext } from '@nestjs/common';
import type { CallOptions } from './call-options.js';
import { RequestCaller, currentContext } from './caller-context.js';
import { HttpCaller } from './http-caller.js';

/** The caller of a handler. */
export function callerOf(context: ExecutionContext): RequestCaller {
  const origin = context.getType();
  return origin === 'http' ? new HttpCaller(context) : new RequestCaller(origin);
}

/** Injects the {@link RequestCaller}. */
export const HandlerCaller = createParamDecorator((_: unknown, context: ExecutionContext) =>
  callerOf(context),
);

/** Options for calls of a handler. */
export function optionsOf(caller: RequestCaller | undefined): CallOptions {
  return caller
    ? { origin: caller.origin, ...(caller instanceof HttpCaller && { signal: caller }) }
    : {};
}

/**
 * The HTTP request's `AbortSignal`, which aborts when the client closes its connection before the
 * answer. Pass it to calls that should end then, of servings or of `fetch`. Other transports do not
 * report that clients leave, so there it never aborts.
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

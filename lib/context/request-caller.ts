import { createParamDecorator, type ExecutionContext } from '@nestjs/common';
import type { CallOptions } from './call-options.js';
import { RequestCaller, currentContext } from './caller-context.js';
import { HttpCaller } from './http-caller.js';

/** The caller of the handler that Nest runs. */
export function callerOf(context: ExecutionContext): RequestCaller {
  const origin = context.getType();
  return origin === 'http' ? new HttpCaller(context) : new RequestCaller(origin);
}

/** A parameter of a handler with its {@link RequestCaller}. */
export const HandlerCaller = createParamDecorator((_: unknown, context: ExecutionContext) =>
  callerOf(context),
);

/** The options of a call that a handler makes for its caller. */
export function optionsOf(caller: RequestCaller | undefined): CallOptions {
  return caller
    ? { origin: caller.origin, ...(caller instanceof HttpCaller && { signal: caller }) }
    : {};
}

/**
 * The `AbortSignal` of the HTTP request: aborts when the client closes its connection before it was
 * answered. Pass it to calls that should end then, of servings or of `fetch`. It never aborts over
 * other transports, whose clients do not report that they leave.
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

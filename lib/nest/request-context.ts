import { randomUUID } from 'node:crypto';
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
import { HttpCaller, httpExchangeOf } from './http-caller.js';

export function callerOf(context: ExecutionContext): RequestCaller {
  const exchange = httpExchangeOf(context);
  return exchange ? new HttpCaller(exchange) : new RequestCaller(context.getType());
}

/** A parameter that stands for the caller: pipes may copy it. */
interface CallerTicket {
  readonly servingCaller: string;
  readonly origin: string;
}

/** HTTP callers of handlers not called yet, by ticket. */
const expected = new Map<string, HttpCaller>();
/** Begins each ticket, so that no client can write one. */
const secret = randomUUID();
let tickets = 0;

export const HandlerCaller = createParamDecorator((_: unknown, context: ExecutionContext) => {
  const caller = callerOf(context);
  const ticket: CallerTicket = { servingCaller: `${secret} ${++tickets}`, origin: caller.origin };
  if (caller instanceof HttpCaller) {
    forgetAnswered();
    expected.set(ticket.servingCaller, caller);
  }
  return ticket;
});

/** Undefined if code called the method. */
export function takeCaller(args: unknown[]): RequestCaller | undefined {
  const last = args.at(-1);
  if (!isTicket(last)) {
    return undefined;
  }
  args.pop();
  const { servingCaller, origin } = last;
  const caller = expected.get(servingCaller);
  expected.delete(servingCaller);
  return caller ?? new RequestCaller(origin);
}

function isTicket(value: unknown): value is CallerTicket {
  return (
    typeof value === 'object' &&
    value !== null &&
    'servingCaller' in value &&
    typeof value.servingCaller === 'string' &&
    value.servingCaller.startsWith(secret)
  );
}

/** Forgets callers that a pipe refused: their handlers are never called. */
function forgetAnswered(): void {
  for (const [ticket, caller] of expected) {
    expected.delete(ticket);
    if (!caller.isAnswered) {
      expected.set(ticket, caller);
      return;
    }
  }
}

export function optionsOf(caller: RequestCaller | undefined): CallOptions {
  return caller
    ? { origin: caller.origin, ...(caller instanceof HttpCaller && { signal: caller }) }
    : {};
}

/**
 * The HTTP request's `AbortSignal`, which aborts when the client leaves before the answer. Pass it
 * to calls that should end then, of servings or of `fetch`. Other transports don't report leaving
 * clients, so it never aborts there.
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

/** @throws InvalidServingError if the serving needs origins, but calls have none */
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

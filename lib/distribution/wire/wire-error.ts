import { isPlainObject } from '../../batch/container.js';
import { toWire, type WireError } from '../../errors.js';

/**
 * The form of an error that is sent to other machines. It has no stack, which would reveal this
 * one.
 */
export function wireError(error: unknown): WireError {
  return withoutStacks(toWire(error));
}

/** True for the result of {@link wireError}. */
export function isWireError(value: unknown): value is WireError {
  if (!isPlainObject(value)) {
    return false;
  }
  const { name, message, stack, code, retryAfter, cause } = value as Record<
    keyof WireError,
    unknown
  >;
  return (
    typeof name === 'string' &&
    typeof message === 'string' &&
    stack === undefined &&
    (code === undefined || typeof code === 'string') &&
    (retryAfter === undefined || typeof retryAfter === 'number') &&
    (cause === undefined || isWireError(cause))
  );
}

function withoutStacks({ name, message, code, retryAfter, cause }: WireError): WireError {
  return {
    name,
    message,
    ...(code !== undefined && { code }),
    ...(retryAfter !== undefined && { retryAfter }),
    ...(cause && { cause: withoutStacks(cause) }),
  };
}

import { isPlainObject } from '../../batch/container.js';
import { toWire, type WireError } from '../../errors.js';

/**
 * Of an error only what is said crosses to another machine: a stack tells strangers of this one.
 */
export function wireError(error: unknown): WireError {
  return withoutStacks(toWire(error));
}

/** True for what {@link wireError} gives. */
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

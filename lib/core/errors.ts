import { types } from 'node:util';
import { formatValue } from './format.js';

/** Options of a {@link ServingError}. */
export interface ServingErrorOptions extends ErrorOptions {
  /** Whole seconds after which a retry may succeed. */
  readonly retryAfter?: number | undefined;
}

/** The base class of this package's errors. */
export class ServingError extends Error {
  /** The class's name. */
  override readonly name: string = 'ServingError';
  /** Stable, for programs. */
  readonly code: string = 'SERVING_ERROR';
  /** The HTTP status that Nest's exception filter answers with. */
  readonly statusCode: number = 500;
  /** Whole seconds after which a retry may succeed; over HTTP, the header `Retry-After`. */
  declare readonly retryAfter?: number;

  constructor(message?: string, { retryAfter, ...options }: ServingErrorOptions = {}) {
    super(message, options);
    if (retryAfter !== undefined) {
      this.retryAfter = retryAfter;
    }
  }

  /** With `expose`, marks an HTTP error as the package http-errors does. */
  get status(): number {
    return this.statusCode;
  }

  /** True if an HTTP client may read the message: only when the client is at fault. */
  get expose(): boolean {
    return this.statusCode < 500;
  }

  /** Omits stack and cause, which may hold secrets. */
  toJSON(): Pick<ServingError, 'name' | 'code' | 'statusCode' | 'message' | 'retryAfter'> {
    const { name, code, statusCode, message, retryAfter } = this;
    return { name, code, statusCode, message, ...(retryAfter !== undefined && { retryAfter }) };
  }
}

/** A definition, or its use, is invalid; thrown while the application boots. */
export class InvalidServingError extends ServingError {
  override readonly name = 'InvalidServingError';
  override readonly code = 'SERVING_INVALID';
}

/** No serving has the name. */
export class UnknownServingError extends ServingError {
  override readonly name = 'UnknownServingError';
  override readonly code = 'SERVING_UNKNOWN';
}

/** The serving has no version with the requested label. */
export class UnknownVersionError extends ServingError {
  override readonly name = 'UnknownVersionError';
  override readonly code = 'SERVING_UNKNOWN_VERSION';
  override readonly statusCode = 404;
}

/** A serving's model, module file or class could not be loaded. */
export class ServingLoadError extends ServingError {
  override readonly name = 'ServingLoadError';
  override readonly code = 'SERVING_LOAD_FAILED';
}

/** No requested execution provider works on this machine. */
export class ProviderUnavailableError extends ServingError {
  override readonly name = 'ProviderUnavailableError';
  override readonly code = 'SERVING_PROVIDER_UNAVAILABLE';
}

/** Rows do not form a batch: empty, uneven, or of different types. */
export class InvalidBatchError extends ServingError {
  override readonly name = 'InvalidBatchError';
  override readonly code = 'SERVING_INVALID_BATCH';
  override readonly statusCode = 400;
}

/** A valid batch's rows are unlike the serving's inputs. */
export class InvalidInputError extends ServingError {
  override readonly name = 'InvalidInputError';
  override readonly code = 'SERVING_INVALID_INPUT';
  override readonly statusCode = 400;
}

/** The serving doesn't have the batch's key. */
export class UnknownKeyError extends ServingError {
  override readonly name = 'UnknownKeyError';
  override readonly code = 'SERVING_UNKNOWN_KEY';
  override readonly statusCode = 400;
}

/** The call has more rows, bytes or cost than the serving ever takes. */
export class RequestTooLargeError extends ServingError {
  override readonly name = 'RequestTooLargeError';
  override readonly code = 'SERVING_TOO_LARGE';
  override readonly statusCode = 413;
}

/** The caller's HTTP connection closed before the answer. */
export class CallCancelledError extends ServingError {
  override readonly name = 'CallCancelledError';
  override readonly code = 'SERVING_CANCELLED';
  override readonly statusCode = 499;
}

/** The call was not answered within its `timeout`. */
export class DeadlineExceededError extends ServingError {
  override readonly name = 'DeadlineExceededError';
  override readonly code = 'SERVING_DEADLINE_EXCEEDED';
  override readonly statusCode = 504;
}

/** Refused on arrival: by learned batch times, the call would miss its `timeout`. */
export class DeadlineTooShortError extends ServingError {
  override readonly name = 'DeadlineTooShortError';
  override readonly code = 'SERVING_DEADLINE_TOO_SHORT';
  override readonly statusCode = 503;
}

/** The serving's queue is full. */
export class OverloadedError extends ServingError {
  override readonly name = 'OverloadedError';
  override readonly code = 'SERVING_OVERLOADED';
  override readonly statusCode = 503;
}

/** The serving is not running: not started, shutting down, or closed. */
export class ServingClosedError extends ServingError {
  override readonly name = 'ServingClosedError';
  override readonly code = 'SERVING_CLOSED';
  override readonly statusCode = 503;
}

export function closedError(serving: string): ServingClosedError {
  return new ServingClosedError(`Serving "${serving}" is closed and takes no more calls`);
}

/** A stream's consumer is so slow that events would fill the memory. */
export class SlowConsumerError extends ServingError {
  override readonly name = 'SlowConsumerError';
  override readonly code = 'SERVING_SLOW_CONSUMER';
  override readonly statusCode = 503;
}

/** The batch function threw, or rejected a row's promise; `cause` is what it threw. */
export class BatchFailedError extends ServingError {
  override readonly name = 'BatchFailedError';
  override readonly code = 'SERVING_BATCH_FAILED';
}

/** The batch function's result can't be divided among the rows. */
export class InvalidOutputError extends ServingError {
  override readonly name = 'InvalidOutputError';
  override readonly code = 'SERVING_INVALID_OUTPUT';
}

/** A batch ran longer than `recovery.runTimeout`. */
export class RunTimeoutError extends ServingError {
  override readonly name = 'RunTimeoutError';
  override readonly code = 'SERVING_RUN_TIMEOUT';
  override readonly statusCode = 504;
}

/**
 * No partition works or is expected back soon (the circuit is open), or no node with the serving
 * takes calls.
 */
export class ServingUnavailableError extends ServingError {
  override readonly name = 'ServingUnavailableError';
  override readonly code = 'SERVING_UNAVAILABLE';
  override readonly statusCode = 503;
}

/**
 * A batch function called a serving, in a chain or directly, that can't run the call before the
 * batch ends.
 */
export class CallCycleError extends ServingError {
  override readonly name = 'CallCycleError';
  override readonly code = 'SERVING_CALL_CYCLE';
}

/** A partition's thread or process ended while it held the batch. */
export class PartitionLostError extends ServingError {
  override readonly name = 'PartitionLostError';
  override readonly code = 'SERVING_PARTITION_LOST';
  override readonly statusCode = 503;
}

/** The node with the call is gone or unreachable, and no other may run it again. */
export class NodeLostError extends ServingError {
  override readonly name = 'NodeLostError';
  override readonly code = 'SERVING_NODE_LOST';
  override readonly statusCode = 503;
}

/**
 * The session was closed, made no step for too long, or lost its state with its partition or node.
 */
export class SessionEndedError extends ServingError {
  override readonly name = 'SessionEndedError';
  override readonly code = 'SERVING_SESSION_ENDED';
  override readonly statusCode = 410;
}

/** Begins all codes of this package. */
const CODES = 'SERVING_';

/** True for this package's errors, also from another copy. */
export function isServingError(error: unknown): error is ServingError {
  return (
    isError(error) && readable(() => 'code' in error && String(error.code).startsWith(CODES), false)
  );
}

const ofRuns = new WeakSet<Error>();

/** Marks an error of the application's code: it may be another serving's refusal, but rows have run. */
export function noteRun<T>(error: T): T {
  if (isServingError(error)) {
    ofRuns.add(error);
  }
  return error;
}

function throwNoted(error: unknown): never {
  throw noteRun(error);
}

export function isThenable(value: unknown): value is PromiseLike<unknown> {
  if (typeof value !== 'object' || value === null) {
    return false;
  }
  try {
    return 'then' in value && typeof value.then === 'function';
  } catch {
    // Only this row's caller gets the error, when the row is read.
    return false;
  }
}

/** Runs the application's code, whose errors it marks. Waits for queries and others' promises, too. */
export function afterRun<T>(work: () => T): T | Promise<Awaited<T>> {
  try {
    const result = work();
    return isThenable(result) ? Promise.resolve(result).catch(throwNoted) : result;
  } catch (error) {
    return throwNoted(error);
  }
}

export function hasRun(error: Error): boolean {
  return ofRuns.has(error);
}

/** Accepts errors of any realm, unlike `instanceof`. False if reading the value throws. */
export function isError(value: unknown): value is Error {
  return (
    typeof value === 'object' &&
    readable(() => value instanceof Error || types.isNativeError(value), false)
  );
}

/** Like `instanceof`, but false for unreadable values. */
export function isA<T extends Error>(
  error: unknown,
  type: abstract new (...args: never[]) => T,
): error is T {
  return readable(() => error instanceof type, false);
}

const SHORT_STACK = 3;

/** Loggers print all stacks of an error and its causes, mostly this package's frames. */
export function shortenStacks(error: unknown, depth = 0): void {
  if (depth < 8 && isError(error)) {
    readable(() => {
      const [before = '', ...frames] = error.stack?.split(/\n(?= +at )/) ?? [];
      error.stack = [before, ...frames.slice(0, SHORT_STACK)].join('\n');
    }, undefined);
    shortenStacks(
      readable(() => error.cause, undefined),
      depth + 1,
    );
  }
}

export function messageOf(error: unknown): string {
  return readable(() => textOf(hasMessage(error) ? error.message : error), UNREADABLE);
}

/**
 * Describes an error whose text may hold a secret: its name, and its code or its cause's, such as
 * `TypeError (ECONNREFUSED)`.
 */
export function kindOf(error: unknown): string {
  return readable(() => {
    const name = isError(error) && /^\w{1,50}$/.test(error.name) ? error.name : 'an error';
    const code = codeIn(error) ?? codeIn((error as { readonly cause?: unknown } | null)?.cause);
    return code === undefined ? name : `${name} (${code})`;
  }, UNREADABLE);
}

function codeIn(error: unknown): string | undefined {
  const code = (error as { readonly code?: unknown } | null | undefined)?.code;
  return typeof code === 'string' && /^[A-Z][A-Z0-9_]{0,50}$/.test(code) ? code : undefined;
}

function hasMessage(value: unknown): value is { readonly message: unknown } {
  return typeof value === 'object' && value !== null && 'message' in value;
}

const UNREADABLE = 'an error that cannot be read';

function textOf(value: unknown): string {
  return typeof value === 'string' ? value : formatValue(value);
}

/** Reading a thrown value or a row may throw. */
export function readable<T>(read: () => T, otherwise: T): T {
  try {
    return read();
  } catch {
    return otherwise;
  }
}

/** An error in transit: structured clone drops class, code and cause. */
export interface WireError {
  readonly name: string;
  readonly message: string;
  readonly stack?: string;
  readonly code?: string;
  readonly retryAfter?: number;
  /** Plain data, as JSON. */
  readonly details?: string;
  readonly cause?: WireError;
}

/** Characters. */
const LONGEST_DETAILS = 4096;

const classes = new Map(
  [
    ServingError,
    InvalidServingError,
    UnknownServingError,
    UnknownVersionError,
    ServingLoadError,
    ProviderUnavailableError,
    InvalidBatchError,
    InvalidInputError,
    UnknownKeyError,
    RequestTooLargeError,
    CallCancelledError,
    DeadlineExceededError,
    DeadlineTooShortError,
    OverloadedError,
    ServingClosedError,
    SlowConsumerError,
    BatchFailedError,
    InvalidOutputError,
    RunTimeoutError,
    CallCycleError,
    ServingUnavailableError,
    PartitionLostError,
    NodeLostError,
    SessionEndedError,
  ].map((type) => [new type().code, type]),
);

/** Includes causes down to `depth`: an error can be its own cause. */
export function toWire(error: unknown, depth = 8): WireError {
  const unreadable = { name: 'Error', message: messageOf(error) };
  return isError(error) ? readable(() => partsOf(error, depth), unreadable) : unreadable;
}

function partsOf(error: Error, depth: number): WireError {
  const code = 'code' in error && typeof error.code === 'string' ? { code: error.code } : {};
  const retryAfter =
    error instanceof ServingError && error.retryAfter !== undefined
      ? { retryAfter: error.retryAfter }
      : {};
  const stack = error.stack === undefined ? {} : { stack: textOf(error.stack) };
  const cause =
    error.cause === undefined || depth === 0 ? {} : { cause: toWire(error.cause, depth - 1) };
  const details = detailsOf(error);
  return {
    name: textOf(error.name),
    message: messageOf(error),
    ...stack,
    ...code,
    ...retryAfter,
    ...(details !== undefined && { details }),
    ...cause,
  };
}

const KNOWN = new Set(['name', 'message', 'stack', 'cause']);

/** True for what an error has already without its details. */
function isKnown(error: Error, name: string, value: unknown): boolean {
  const ofServings = error instanceof ServingError;
  return (
    KNOWN.has(name) ||
    (name === 'code' && typeof value === 'string') ||
    (ofServings && name === 'retryAfter') ||
    (ofServings && name === 'statusCode' && classOf(error.code) !== ServingError)
  );
}

function detailsOf(error: Error): string | undefined {
  const parts: string[] = [];
  let length = 0;
  const entries: [string, unknown][] = [
    ...Object.entries(error),
    ...Object.entries(httpMarksOf(error)),
  ];
  for (const [name, value] of entries) {
    // Undefined for a function, for example.
    const text = isKnown(error, name, value)
      ? undefined
      : readable(() => JSON.stringify(value), undefined);
    if (text !== undefined && length + name.length + text.length < LONGEST_DETAILS) {
      length += name.length + text.length;
      parts.push(`${JSON.stringify(name)}:${text}`);
    }
  }
  return parts.length === 0 ? undefined : `{${parts.join(',')}}`;
}

/** Lets Nest's filters, which know marks of the package http-errors, keep an exception's status. */
function httpMarksOf(error: Error & { readonly getStatus?: unknown }): object {
  return typeof error.getStatus === 'function' && 'getResponse' in error
    ? { statusCode: Reflect.apply(error.getStatus, error, []) as unknown, expose: true }
    : {};
}

function addDetails(error: Error, details: string): void {
  const values = readable(() => JSON.parse(details) as unknown, undefined);
  for (const [name, value] of Object.entries(values ?? {})) {
    if (!(name in error) || isOwnStatus(error, name, value)) {
      Object.defineProperty(error, name, { value, enumerable: true, configurable: true });
    }
  }
}

/** True for the status of an application's own ServingError. */
function isOwnStatus(error: Error, name: string, value: unknown): boolean {
  const isOwn = name === 'statusCode' && error.constructor === ServingError;
  return isOwn && Number.isInteger(value) && Number(value) >= 400 && Number(value) < 600;
}

/** Applications' own classes of ServingErrors become ServingErrors. */
function classOf(code: string): typeof ServingError | undefined {
  return classes.get(code) ?? (code.startsWith(CODES) ? ServingError : undefined);
}

export function fromWire({
  name,
  message,
  stack,
  code,
  retryAfter,
  details,
  cause,
}: WireError): Error {
  const options = { retryAfter, ...(cause !== undefined && { cause: fromWire(cause) }) };
  const type = code === undefined ? undefined : classOf(code);
  const error = type ? new type(message, options) : new Error(message, options);
  if (!type || type === ServingError) {
    Object.assign(error, { name }, code !== undefined && { code });
  }
  if (stack !== undefined) {
    error.stack = stack;
  }
  if (details !== undefined) {
    addDetails(error, details);
  }
  return error;
}

/** Stack traces cost more than the calls in a flood of refusals, and don't show the cause. */
export function withoutStack<E extends Error>(make: () => E): E {
  const { stackTraceLimit } = Error;
  Error.stackTraceLimit = 0;
  try {
    return make();
  } finally {
    Error.stackTraceLimit = stackTraceLimit;
  }
}

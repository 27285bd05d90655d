import { DeadlineExceededError, InvalidInputError, messageOf } from '../errors.js';
import { formatValue } from '../format.js';
import {
  type AbortSignalLike,
  type CallOptions,
  NO_OPTIONS,
  onAbort,
  type StreamOptions,
} from '../context/call-context.js';
import { LONGEST_DELAY } from '../definition/option-rules.js';
import type { Callbacks } from '../definition/resolved-serving.js';
import type { CallRecorder } from '../events/call-recorder.js';
import type { CallGroup } from './lanes.js';
import type { StateTurn } from '../partitions/row-states.js';

export interface Due {
  /** Milliseconds of `performance.now()`. */
  readonly deadline: number;
  readonly deadlineError: () => Error;
}

export interface ResolvedCallOptions extends Due {
  readonly priority: number;
  readonly tenant: string;
  /** Undefined if the batch gives the key. */
  readonly key: string | undefined;
  readonly signal: AbortSignalLike | undefined;
  /** For rows that callers share: their latest deadline, for the queue only. */
  readonly shared?: Due;
}

export const DEFAULT_CALL_OPTIONS: ResolvedCallOptions = {
  priority: 0,
  tenant: '',
  key: undefined,
  deadline: Infinity,
  signal: undefined,
  deadlineError: () => new DeadlineExceededError('The deadline of the call has passed'),
};

/** True if only streams have the option. */
const OPTIONS: ReadonlyMap<string, boolean> = new Map(
  Object.entries({
    signal: false,
    timeout: false,
    priority: false,
    tenant: false,
    key: false,
    origin: false,
    version: false,
    hooks: true,
    inline: true,
  } satisfies Record<keyof StreamOptions<string>, boolean>),
);

/**
 * Starts the call's timeout.
 *
 * @throws InvalidInputError for an unknown option or an invalid value
 */
export function resolveCallOptions(
  { name, queue, timeout: limits }: Callbacks,
  input: unknown,
  options: CallOptions,
  patience?: number,
  isStream = false,
): ResolvedCallOptions {
  const most = typeof limits === 'object' ? limits.most : undefined;
  const usual = patience ?? most;
  if (options === NO_OPTIONS && usual === undefined && !queue?.tenant) {
    return DEFAULT_CALL_OPTIONS;
  }
  checkNames(name, options, isStream);
  const {
    priority = 0,
    tenant = queue?.tenant?.(input) ?? '',
    timeout = usual,
    key,
    signal,
  } = options;
  if (
    priority === 0 &&
    tenant === '' &&
    timeout === undefined &&
    key === undefined &&
    signal === undefined
  ) {
    return DEFAULT_CALL_OPTIONS;
  }
  check(
    name,
    'priority',
    priority,
    Number.isInteger(priority) && Math.abs(priority) <= 10,
    'a whole number from -10 to 10',
  );
  check(name, 'tenant', tenant, typeof tenant === 'string', 'a string');
  checkSignal(name, signal);
  check(name, 'key', key, key === undefined || typeof key === 'string', 'a string');
  check(
    name,
    'timeout',
    timeout,
    timeout === undefined || (typeof timeout === 'number' && timeout >= 0),
    'milliseconds of 0 or more',
  );
  const limit = Math.min(timeout ?? Infinity, most ?? Infinity);
  const now = performance.now();
  const deadline = limit > LONGEST_DELAY ? Infinity : now + limit;
  const deadlineError = () =>
    new DeadlineExceededError(
      `Serving "${name}" did not answer within the ${limit} ms that the call had`,
    );
  return { priority, tenant, key, signal, deadline, deadlineError };
}

/**
 * Tries a signal that isn't an AbortSignal, before its call joins others.
 *
 * @throws InvalidInputError
 */
function checkSignal(serving: string, signal: AbortSignalLike | undefined): void {
  if (signal === undefined || signal instanceof AbortSignal) {
    return;
  }
  const lack = lackOf(signal);
  if (lack) {
    throw new InvalidInputError(
      `A call to serving "${serving}" has a signal ${lack}; give an AbortSignal, such as ` +
        'controller.signal, or an object like it',
    );
  }
}

const tried = (): void => {};

function lackOf(signal: AbortSignalLike): string | undefined {
  try {
    if (typeof (signal as AbortSignalLike | null)?.aborted !== 'boolean') {
      return `that is ${formatValue(signal)}`;
    }
    for (const method of ['throwIfAborted', 'addEventListener', 'removeEventListener'] as const) {
      if (typeof signal[method] !== 'function') {
        return `without ${method}`;
      }
    }
    if (!('onAbort' in signal)) {
      signal.addEventListener('abort', tried, { once: true });
      signal.removeEventListener('abort', tried);
    }
    return undefined;
  } catch (cause) {
    return `that fails: ${messageOf(cause)}`;
  }
}

/**
 * Calls back when the signal aborts or the deadline passes, immediately if either has. The result
 * removes the callback.
 */
export function onCancel(
  { signal, deadline, deadlineError }: ResolvedCallOptions,
  callback: (reason: unknown) => void,
): () => void {
  const stopListening = onAbort(signal, callback);
  if (deadline === Infinity) {
    return stopListening;
  }
  const left = deadline - performance.now();
  if (left <= 0) {
    callback(deadlineError());
    return stopListening;
  }
  const timer = setTimeout(() => callback(deadlineError()), left);
  return () => {
    stopListening();
    clearTimeout(timer);
  };
}

export function isCancellable({ signal, deadline }: ResolvedCallOptions): boolean {
  return signal !== undefined || deadline < Infinity;
}

export function orCancelled<T>(terms: ResolvedCallOptions, work: Promise<T>): Promise<T> {
  if (!isCancellable(terms)) {
    return work;
  }
  let stopListening!: () => void;
  const stopped = new Promise<never>((_, reject) => (stopListening = onCancel(terms, reject)));
  return Promise.race([work, stopped]).finally(stopListening);
}

/** Checks own properties only: options may be an AbortController, whose signal is inherited. */
function checkNames(serving: string, options: CallOptions, isStream: boolean): void {
  // A list of names would cost every call.
  for (const option in options) {
    const ofStreams = OPTIONS.get(option);
    const isKnown = ofStreams !== undefined && (isStream || !ofStreams);
    if (!isKnown && Object.hasOwn(options, option)) {
      const allowed = [...OPTIONS].filter(([, isForStreams]) => isStream || !isForStreams);
      const names = allowed.map(([each]) => each).join(', ');
      throw new InvalidInputError(
        `A call to serving "${serving}" has the unknown option ${formatValue(option)}; allowed ` +
          `are ${names}`,
      );
    }
  }
}

function check(
  serving: string,
  option: string,
  value: unknown,
  isAllowed: boolean,
  allowed: string,
): void {
  if (!isAllowed) {
    throw new InvalidInputError(
      `A call to serving "${serving}" has ${option} ${formatValue(value)}; allowed is ${allowed}`,
    );
  }
}

/** Key of the options that only this package gives. Options from a client's JSON have no symbols. */
export const INTERNAL = Symbol('internal options');

export interface InternalCallOptions extends CallOptions {
  readonly [INTERNAL]?: InternalOptions;
}

interface InternalOptions {
  /**
   * Allows views of the batch's output: the caller copies it in the same turn of the event loop.
   */
  readonly zeroCopy?: boolean;
  readonly group?: CallGroup | undefined;
  readonly turn?: StateTurn;
  /** Keeps the deadline of a call that began earlier. */
  readonly resolved?: ResolvedCallOptions;
  readonly recorder?: CallRecorder | undefined;
}

interface Wait {
  readonly result: Promise<unknown>;
  readonly end: (reason: unknown) => void;
}

/**
 * Waits for results that can't be cancelled: of `preprocess`, `postprocess`, or a loading version.
 * A caller waits at most until its call is cancelled or {@link end} is called.
 */
export class Waits {
  private readonly waits = new Set<Wait>();
  private ending: { readonly error: Error } | undefined;

  get size(): number {
    return this.waits.size;
  }

  for<T>(
    work: Promise<T>,
    terms: ResolvedCallOptions = DEFAULT_CALL_OPTIONS,
    left?: AbortSignal,
  ): Promise<T> {
    let end!: Wait['end'];
    const stops: (() => void)[] = [];
    const result = Promise.race([work, new Promise<never>((_, reject) => (end = reject))]);
    const wait = { result, end };
    this.waits.add(wait);
    const forget = (): void => {
      this.waits.delete(wait);
      stops.forEach((stop) => stop());
    };
    result.then(forget, forget);
    stops.push(onCancel(terms, end), onAbort(left, end));
    if (this.ending) {
      end(this.ending.error);
    }
    return result;
  }

  async idle(): Promise<void> {
    while (this.waits.size > 0) {
      await Promise.allSettled([...this.waits].map(({ result }) => result));
    }
  }

  /** Rejects all waits, and later ones immediately. */
  end(error: Error): void {
    this.ending = { error };
    this.waits.forEach(({ end }) => end(error));
  }
}

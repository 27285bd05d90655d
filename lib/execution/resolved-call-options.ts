import { DeadlineExceededError, InvalidInputError } from '../errors.js';
import { show } from '../format.js';
import type { Callbacks } from './call.js';
import { type AbortSignalLike, type CallOptions, onAbort, type StreamOptions } from '../context/call-options.js';
import { LONGEST_DELAY } from '../definition/option-rules.js';

/** What a call asks for beside its rows, with every default filled in. */
export interface CallTerms {
  readonly priority: number;
  readonly tenant: string;
  /** The key of its rows; that of its batch, if there is none. */
  readonly key: string | undefined;
  /** When its caller waits no more, in milliseconds of `performance.now()`. */
  readonly deadline: number;
  readonly signal: AbortSignalLike | undefined;
  /** What its caller is told when the deadline has passed. */
  readonly late: () => Error;
}

/** The terms of a call that asks for nothing; one for all of them. */
export const NOTHING_ASKED: CallTerms = {
  priority: 0,
  tenant: '',
  key: undefined,
  deadline: Infinity,
  signal: undefined,
  late: () => new DeadlineExceededError('The deadline of the call has passed'),
};

/** The options that a caller may give, and whether only a stream has them. */
const OPTIONS: ReadonlyMap<string, { readonly ofStreams: boolean }> = new Map(
  Object.entries({
    signal: { ofStreams: false },
    timeout: { ofStreams: false },
    priority: { ofStreams: false },
    tenant: { ofStreams: false },
    key: { ofStreams: false },
    origin: { ofStreams: false },
    hooks: { ofStreams: true },
    inline: { ofStreams: true },
  } satisfies Record<keyof StreamOptions<string>, { ofStreams: boolean }>),
);

/** The option that only this package gives. */
const OWN_OPTION: keyof OwnCallOptions = 'lends';

/**
 * The terms of a call to the serving, whose time runs from now.
 *
 * @throws InvalidInputError for an option that is unknown, or cannot be
 */
export function termsOf(
  { name, tenant: tenantOf }: Callbacks,
  input: unknown,
  options: CallOptions,
  patience?: number,
  isStream = false,
): CallTerms {
  checkNames(name, options, isStream);
  const { priority = 0, tenant = tenantOf?.(input) ?? '', timeout = patience, key, signal } = options;
  if (priority === 0 && tenant === '' && timeout === undefined && key === undefined && signal === undefined) {
    return NOTHING_ASKED;
  }
  check(name, 'priority', priority, Number.isInteger(priority) && Math.abs(priority) <= 10, 'a whole number from -10 to 10');
  check(name, 'tenant', tenant, typeof tenant === 'string', 'a string');
  check(name, 'key', key, key === undefined || typeof key === 'string', 'a string');
  check(
    name,
    'timeout',
    timeout,
    timeout === undefined || (typeof timeout === 'number' && timeout >= 0),
    'milliseconds of 0 or more',
  );
  const deadline = timeout === undefined || timeout > LONGEST_DELAY ? Infinity : performance.now() + timeout;
  const late = () => new DeadlineExceededError(`Serving "${name}" did not answer within the ${timeout} ms that the call had`);
  return { priority, tenant, key, signal, deadline, late };
}

/** Calls back with the reason when the call is to end before its answer, at once if it is; the function that it returns ends that. */
export function onStop({ signal, deadline, late }: CallTerms, callback: (reason: unknown) => void): () => void {
  const unheard = onAbort(signal, callback);
  if (deadline === Infinity) {
    return unheard;
  }
  const left = deadline - performance.now();
  if (left <= 0) {
    callback(late());
    return unheard;
  }
  const timer = setTimeout(() => callback(late()), left);
  return () => {
    unheard();
    clearTimeout(timer);
  };
}

/** Whether the call may have to end before its answer. */
export function mayStop({ signal, deadline }: CallTerms): boolean {
  return signal !== undefined || deadline < Infinity;
}

/** What can be answered before its work has come to an end. */
interface Stoppable {
  readonly isOver: boolean;
  fail(reason: unknown): void;
}

/** The answer to the request, which ends when its call is to end, and is not submitted where that is so already. */
export async function untilStop<T>(terms: CallTerms, request: Stoppable, submit: () => void, answer: Promise<T>): Promise<T> {
  const stop = onStop(terms, (reason) => request.fail(reason));
  try {
    if (!request.isOver) {
      submit();
    }
    return await answer;
  } finally {
    stop();
  }
}

/** What the work gives, unless the call is to end before. */
export function inTime<T>(terms: CallTerms, work: Promise<T>): Promise<T> {
  if (!mayStop(terms)) {
    return work;
  }
  let unheard!: () => void;
  const stopped = new Promise<never>((_, reject) => (unheard = onStop(terms, reject)));
  return Promise.race([work, stopped]).finally(unheard);
}

/** Own names only: options may be an AbortController, whose signal is that of its class. */
function checkNames(serving: string, options: CallOptions, isStream: boolean): void {
  // Makes no list of names, which every call would pay for.
  for (const option in options) {
    const known = OPTIONS.get(option);
    if (!Object.hasOwn(options, option)) {
      continue;
    }
    if ((!known || (known.ofStreams && !isStream)) && option !== OWN_OPTION) {
      const allowed = [...OPTIONS].filter(([, { ofStreams }]) => isStream || !ofStreams);
      const names = allowed.map(([each]) => each).join(', ');
      throw new InvalidInputError(`A call to serving "${serving}" has the unknown option ${show(option)}; allowed are ${names}`);
    }
  }
}

function check(serving: string, option: string, value: unknown, isAllowed: boolean, allowed: string): void {
  if (!isAllowed) {
    throw new InvalidInputError(`A call to serving "${serving}" has ${option} ${show(value)}; allowed is ${allowed}`);
  }
}

/** What only this package says of a call. */
export interface OwnCallOptions extends CallOptions {
  /** Its output is copied before anybody else could do anything with it, and may be views of that of its batch. */
  readonly lends?: boolean;
  /** Its terms, whose time runs already. */
  readonly terms?: CallTerms;
}

import { Readable } from 'node:stream';
import { isObservable, type Observable, tap } from 'rxjs';
import { Batch } from '../batch/batch.js';
import { read } from '../batch/container.js';
import { copyInput } from '../batch/deep-copy.js';
import { InvalidBatchError, InvalidInputError, OverloadedError } from '../errors.js';
import { formatValue } from '../format.js';
import { Queue } from './queue.js';

export type Source<T> = AsyncIterator<T> | Iterator<T>;

/** Waiting values. */
const OBSERVED_AHEAD = 1024;

/** An Observable's values wait here, so `own` makes them independent of its memory. */
export function sourceOf(
  value: unknown,
  own: (value: unknown) => unknown = copyInput,
): Source<unknown> | undefined {
  if (typeof value !== 'object' || value === null) {
    return undefined;
  }
  switch (read(() => sequenceType(value))) {
    case 'asked':
      return iteratorOf(value as AsyncIterable<unknown>);
    case 'observed':
      return observed(value as Observable<unknown>, own);
    case 'iterated':
      return awaited(value as Iterable<unknown>);
    default:
      return undefined;
  }
}

export function ownsValuesOf(value: unknown): boolean {
  return isObservable(value) && read(() => sequenceType(value)) === 'observed';
}

const begun = new WeakSet<object>();

/**
 * Marks an input that can be read only once, such as a generator or a stream.
 *
 * @throws InvalidInputError when another call or reader already reads it
 */
export function readOnce(input: unknown): void {
  if (typeof input !== 'object' || input === null || !read(() => isReadOnce(input))) {
    return;
  }
  if (begun.has(input)) {
    throw new InvalidInputError(
      `The input is ${formatValue(input)}, which can be read only once, and another call or ` +
        'reader has begun to; ' +
        'give each its own, or an iterable that begins anew each time: { [Symbol.asyncIterator]: ' +
        '() => rows() }',
    );
  }
  begun.add(input);
}

function isReadOnce(input: object): boolean {
  const isIterable = Symbol.asyncIterator in input || Symbol.iterator in input;
  return (
    isIterable && ('next' in input || input instanceof Readable || input instanceof ReadableStream)
  );
}

function sequenceType(value: object): 'asked' | 'observed' | 'iterated' | undefined {
  // A ServingStream is both; pulling needs no buffer.
  if (Symbol.asyncIterator in value) {
    return 'asked';
  }
  if (isObservable(value)) {
    return 'observed';
  }
  return (Array.isArray(value) ? holdsBatches(value) : Symbol.iterator in value && 'next' in value)
    ? 'iterated'
    : undefined;
}

function iteratorOf(values: AsyncIterable<unknown>): AsyncIterator<unknown> {
  const iterator: unknown = values[Symbol.asyncIterator]();
  if (
    typeof iterator !== 'object' ||
    iterator === null ||
    !('next' in iterator && typeof iterator.next === 'function')
  ) {
    throw new InvalidBatchError(
      'An async iterable must give an iterator with a method next, it gave ' +
        formatValue(iterator),
    );
  }
  return iterator as AsyncIterator<unknown>;
}

/** Stops at the first hole: a sparse list can be nearly endless. */
function holdsBatches(list: readonly unknown[]): boolean {
  let i = 0;
  while (i < list.length && list[i] instanceof Batch) {
    i++;
  }
  return i > 0 && i === list.length;
}

async function* awaited(values: Iterable<unknown>): AsyncGenerator<unknown, void> {
  for (const value of values) {
    yield value;
  }
}

/** An Observable can't be paused, so a limited number of values wait. */
function observed(
  values$: Observable<unknown>,
  own: (value: unknown) => unknown,
): AsyncIterator<unknown> {
  const waiting = new Queue<unknown>();
  const room = (): void => {
    if (waiting.size === OBSERVED_AHEAD) {
      throw new OverloadedError(
        `An Observable of batches is ${OBSERVED_AHEAD} values ahead of the serving; ` +
          'give an async iterable, which is only asked for what there is room for',
      );
    }
  };
  // Thrown in the pipe, the error also ends an Observable that is still subscribing.
  const subscription = values$.pipe(tap(room)).subscribe({
    next: (value) => waiting.push(own(value)),
    error: (error) => waiting.fail(error),
    complete: () => waiting.end(),
  });
  return {
    next: () => waiting.next(),
    return: () => {
      subscription.unsubscribe();
      return Promise.resolve({ done: true, value: undefined });
    },
  };
}

/** Doesn't wait for the source, which may be busy. */
export function leave(source: Source<unknown>): void {
  void (async () => source.return?.())().catch(() => undefined);
}

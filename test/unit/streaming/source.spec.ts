import { describe, expect, it } from '@jest/globals';
import { concat, from, NEVER, Observable, of, range, Subject, throwError } from 'rxjs';
import { Batch, OverloadedError, ServingStream } from 'nestjs-serving';
import { leave, type Source, sourceOf } from '../../../lib/core/streaming/source.js';
import { floats } from '../../fixtures/values/tensors.js';
import { turn } from '../../fixtures/async/virtual-time.js';

function* counting(to: number): Generator<number> {
  for (let n = 0; n < to; n++) {
    yield n;
  }
}

async function* countingSlowly(to: number): AsyncGenerator<number> {
  yield* counting(to);
}

/** Takes at most this many values. */
async function take(source: Source<unknown> | undefined, count = Infinity): Promise<unknown[]> {
  const values: unknown[] = [];
  while (values.length < count) {
    const { done, value } = await source!.next();
    if (done) {
      break;
    }
    values.push(value);
  }
  return values;
}

describe('sourceOf', () => {
  const batches = [Batch.stack(['a']), Batch.stack(['b'])];

  it.each<[string, () => unknown, unknown[]]>([
    ['an async generator', () => countingSlowly(3), [0, 1, 2]],
    ['an async iterable', () => ({ [Symbol.asyncIterator]: () => countingSlowly(3) }), [0, 1, 2]],
    ['a web stream', () => new Blob(['abc']).stream(), [Buffer.from('abc')]],
    ['a generator', () => counting(3), [0, 1, 2]],
    ['the iterator of a list', () => ['a', 'b'].values(), ['a', 'b']],
    [
      'a generator of promises',
      () =>
        (function* () {
          yield Promise.resolve('a');
        })(),
      ['a'],
    ],
    ['an Observable', () => of('a', 'b'), ['a', 'b']],
    ['an Observable that is late', () => from(countingSlowly(3)), [0, 1, 2]],
    ['a list of batches', () => batches, batches],
  ])('[8.1] Values are pulled from %s', async (_, make, values) => {
    const got = await take(sourceOf(make()));

    expect(got.map((value) => (value instanceof Uint8Array ? Buffer.from(value) : value))).toEqual(
      values,
    );
  });

  it.each<[string, unknown]>([
    ['a text', 'abc'],
    ['nothing', undefined],
    ['null', null],
    ['a function', () => counting(3)],
    ['a list of plain values', [1, 2]],
    ['a list in which not all are batches', [Batch.stack(['a']), 'b']],
    ['an empty list', []],
    ['a set', new Set([1])],
    ['bytes', Buffer.from('abc')],
    ['a batch', Batch.stack(['a'])],
    ['a tensor', floats([1], [1])],
    ['a tuple of tensors', [floats([1], [1])]],
    ['an object', { next: 'week' }],
  ])('[8.1] An input that is no source counts as a value: %s', (_, value) => {
    expect(sourceOf(value)).toBeUndefined();
  });

  it('[8.1] A ServingStream is pulled from and not subscribed to', async () => {
    let given = 0;
    const stream = new ServingStream(async function* () {
      for (; ; given++) {
        yield given;
      }
    });
    const source = sourceOf(stream);

    expect(await take(source, 2)).toEqual([0, 1]);
    await turn();
    expect(given).toBe(1);
    leave(source!);
  });

  describe('of an Observable', () => {
    it('[8.1] Leaving the source of an Observable unsubscribes from it', async () => {
      const values$ = new Subject();
      const source = sourceOf(values$);
      const first = source!.next();
      values$.next('a');
      await first;

      leave(source!);

      expect(values$.observed).toBe(false);
    });

    it('[8.1] Values of an Observable arrive before its error', async () => {
      const error = new Error('the microphone is gone');
      const source = sourceOf(
        concat(
          of('a'),
          throwError(() => error),
        ),
      );

      expect(await take(source, 1)).toEqual(['a']);
      await expect(source!.next()).rejects.toBe(error);
    });

    it.each<[string, Observable<number>]>([
      ['that comes all at once', concat(range(0, 1025), NEVER)],
      [
        'that comes at once and never ends',
        new Observable((subscriber) => {
          for (let n = 0; !subscriber.closed; n++) {
            subscriber.next(n);
          }
        }),
      ],
      ['that comes over time', from(countingSlowly(2000))],
    ])('[8.1] At most 1024 values are held of an Observable %s', async (_, values$) => {
      let isObserved = true;
      const source = sourceOf(
        new Observable((subscriber) => {
          subscriber.add(() => (isObserved = false));
          return values$.subscribe(subscriber);
        }),
      );
      const first = source!.next();
      await turn();

      expect(isObserved).toBe(false);
      expect(await first).toEqual({ done: false, value: 0 });
      const rest: unknown[] = [];
      const all = async (): Promise<void> => {
        for (;;) {
          rest.push((await source!.next()).value);
        }
      };
      await expect(all()).rejects.toThrow(OverloadedError);
      expect(rest.at(-1)).toBe(rest.length);
    });
  });
});

describe('leave', () => {
  it('[8.1] Leaving a generator runs its finally block', () => {
    let ended = false;
    const source = (function* () {
      try {
        yield 1;
      } finally {
        ended = true;
      }
    })();
    source.next();

    leave(source);

    expect(ended).toBe(true);
  });

  it.each<[string, Source<unknown>]>([
    ['has no end of its own', { next: () => ({ done: true, value: undefined }) }],
    [
      'throws at the end',
      {
        next: () => ({ done: true, value: undefined }),
        return: () => {
          throw new Error('no');
        },
      },
    ],
    [
      'rejects at the end',
      {
        next: () => Promise.reject(new Error('no')),
        return: () => Promise.reject(new Error('no')),
      },
    ],
    [
      'never ends',
      { next: () => Promise.reject(new Error('no')), return: () => new Promise(() => {}) },
    ],
  ])('[8.1] Leaving ends without an error for a source that %s', async (_, source) => {
    leave(source);

    await turn();
  });
});

import { describe, expect, it } from '@jest/globals';
import { lastValueFrom, map, take, toArray } from 'rxjs';
import { ServingStream } from 'nestjs-serving';
import { turn } from '../../fixtures/async/virtual-time.js';

/** A stream of numbers that records its opening and closing. */
function counting(to: number, error?: Error) {
  const notes = { opened: 0, given: 0, ended: 0, aborted: 0 };
  const stream = new ServingStream(async function* (left) {
    notes.opened++;
    left.addEventListener('abort', () => notes.aborted++);
    try {
      for (let n = 0; n < to; n++) {
        notes.given++;
        yield n;
      }
      if (error) {
        throw error;
      }
    } finally {
      notes.ended++;
    }
  });
  return { stream, notes };
}

const observed = <T>(stream: ServingStream<T>): Promise<T[]> =>
  lastValueFrom(stream.pipe(toArray()));

async function iterated<T>(stream: ServingStream<T>): Promise<T[]> {
  const values: T[] = [];
  for await (const value of stream) {
    values.push(value);
  }
  return values;
}

describe('ServingStream', () => {
  it.each([
    ['observed', observed],
    ['iterated', iterated],
  ])('[8.2] A stream opens its source anew each time that it is %s', async (_, all) => {
    const { stream, notes } = counting(3);
    expect(notes.opened).toBe(0);

    const values = [await all(stream), await all(stream)];

    expect(values).toEqual([
      [0, 1, 2],
      [0, 1, 2],
    ]);
    expect(notes).toMatchObject({ opened: 2, ended: 2 });
  });

  it.each([
    ['observes', observed],
    ['iterates', iterated],
  ])('[8.2] The error of a stream reaches a consumer that %s', async (_, all) => {
    const error = new Error('too late');

    await expect(all(counting(2, error).stream)).rejects.toBe(error);
  });

  it('[8.2] A stream supports operators like any Observable', async () => {
    const { stream } = counting(3);

    expect(
      await lastValueFrom(
        stream.pipe(
          map((n) => n * 2),
          toArray(),
        ),
      ),
    ).toEqual([0, 2, 4]);
  });

  it('[8.2] Iteration requests one value at a time', async () => {
    const { stream, notes } = counting(10);
    const values = stream[Symbol.asyncIterator]();

    await values.next();
    await values.next();
    await turn();

    expect(notes.given).toBe(2);
    await values.return!();
  });

  it('[8.2] Breaking off an iteration closes the source', async () => {
    const { stream, notes } = counting(10);

    for await (const value of stream) {
      if (value === 1) {
        break;
      }
    }

    expect(notes).toEqual({ opened: 1, given: 2, ended: 1, aborted: 1 });
  });

  it('[8.2] An iteration that ends before its first value opens no source', async () => {
    const { stream, notes } = counting(10);

    expect(await stream[Symbol.asyncIterator]().return!()).toEqual({
      done: true,
      value: undefined,
    });

    expect(notes.opened).toBe(0);
  });

  it('[8.2] Unsubscribing closes the source, also when more values have arrived', async () => {
    const { stream, notes } = counting(10);

    expect(await lastValueFrom(stream.pipe(take(2), toArray()))).toEqual([0, 1]);
    await turn();

    expect(notes).toMatchObject({ opened: 1, ended: 1, aborted: 1 });
    expect(notes.given).toBeLessThanOrEqual(2);
  });

  it('[8.2] Unsubscribing before the first value closes the source', async () => {
    const { stream, notes } = counting(10);

    stream.subscribe(() => expect(notes).toBe('left')).unsubscribe();
    await turn();

    expect(notes).toMatchObject({ opened: 1, ended: 1 });
  });

  it('[8.2] An observer that has unsubscribed receives no error', async () => {
    const errors: unknown[] = [];
    const stream = new ServingStream((left) => ({
      next: () =>
        new Promise<never>((_, reject) =>
          left.addEventListener('abort', () => reject(left.reason)),
        ),
    }));

    stream.subscribe({ error: (error) => errors.push(error) }).unsubscribe();
    await turn();

    expect(errors).toEqual([]);
  });
});

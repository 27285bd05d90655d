import { afterEach, beforeEach, describe, expect, it, jest } from '@jest/globals';
import { array, assert, asyncProperty, jsonValue } from 'fast-check';
import { callEach, ListInParts, writeInTurns } from '../../../lib/encoding/turns.js';

describe('Work in turns of the event loop', () => {
  let others = 0;
  let next: NodeJS.Immediate;

  beforeEach(() => {
    // Each look at the clock is 3 ms after the one before.
    let now = 0;
    jest.spyOn(performance, 'now').mockImplementation(() => (now += 3));
    others = 0;
    const other = (): void => {
      others++;
      next = setImmediate(other);
    };
    next = setImmediate(other);
  });

  afterEach(() => {
    clearImmediate(next);
    jest.restoreAllMocks();
  });

  it('[FZ2] lets others run between the parts of a list that is written', async () => {
    const parts = Array.from({ length: 100 }, (_, i) => [i, `text ${i}`, [i]]);

    const written = await writeInTurns({ id: 'a', list: new ListInParts(parts), end: null });

    expect(Buffer.concat(written).toString()).toBe(
      JSON.stringify({ id: 'a', list: parts.flat(), end: null }),
    );
    expect(others).toBeGreaterThan(40);
  });

  it('[FZ2] lets others run between the calls for a list of inputs', async () => {
    const inputs = Array.from({ length: 100 }, (_, i) => i);
    const seen: number[] = [];

    const replies = await callEach(inputs, undefined, (input) => {
      seen.push(others);
      return Promise.resolve(2 * input);
    });

    expect(replies).toEqual(inputs.map((input) => 2 * input));
    expect(seen.at(-1)).toBeGreaterThan(40);
  });

  it('[FZ2] makes no further call after one failed, or the caller has left', async () => {
    const inputs = Array.from({ length: 100 }, (_, i) => i);
    const leaving = new AbortController();
    const calls: number[] = [];
    const call = (fails: number) => (input: number) => {
      calls.push(input);
      return input === fails ? Promise.reject(new Error('no')) : Promise.resolve(input);
    };

    await expect(callEach(inputs, undefined, call(3))).rejects.toThrow('no');
    expect(calls.length).toBeLessThan(8);
    calls.length = 0;
    const left = callEach(inputs, leaving.signal, call(-1));
    leaving.abort(new Error('left'));
    await expect(left).rejects.toThrow('left');
    expect(calls.length).toBeLessThan(4);
  });
});

describe('JSON that is written in turns', () => {
  it('[FZ2] is the JSON that is written in one go', async () => {
    const parts = array(array(jsonValue(), { minLength: 1 }));
    await assert(
      asyncProperty(array(parts), jsonValue(), async (lists, value) => {
        const written = await writeInTurns({
          value,
          lists: lists.map((list) => new ListInParts(list)),
        });

        expect(Buffer.concat(written).toString()).toBe(
          JSON.stringify({ value, lists: lists.map((list) => list.flat()) }),
        );
      }),
    );
  });
});

import { afterEach, beforeEach, describe, expect, it, jest } from '@jest/globals';
import { readFileSync } from 'node:fs';
import {
  createServing,
  type LocalServing,
  ServingClosedError,
  type ServingDefinition,
} from 'nestjs-serving';
import { HeldFunction } from '../../../fixtures/batching/held-function.js';
import { useServings } from '../../../fixtures/serving/use-servings.js';
import { later, turn, useVirtualTime } from '../../../fixtures/async/virtual-time.js';
import { recordWarnings } from '../../../fixtures/recorded-warnings.js';

const reason = new Error('the client has left');
const caching = { cache: { ttl: 1000 } };

const textOf = ({ text }: { readonly text: string }): string => text;

/** A store that answers at once, or when the test releases it. */
class Store {
  readonly entries = new Map<string, string>();
  readonly asked: string[] = [];
  /** Releases the waiting lookups, once it is set. */
  gate: Promise<void> | undefined;
  sets = 0;

  async get(key: string): Promise<unknown> {
    this.asked.push(key);
    const entry = this.entries.get(key);
    await this.gate;
    return entry;
  }

  async set(key: string, value: string): Promise<void> {
    this.sets++;
    this.entries.set(key, value);
  }
}

describe('Calls with a cache', () => {
  useVirtualTime();
  const start = useServings();
  let store: Store;
  let batches: HeldFunction<unknown>;

  beforeEach(() => {
    store = new Store();
    batches = new HeldFunction();
  });

  afterEach(() => void jest.restoreAllMocks());

  function cached(options: Partial<ServingDefinition> = {}): Promise<LocalServing> {
    const definition = {
      name: 'held',
      deduplication: caching,
      model: { useFactory: batches.useFactory },
      ...options,
    } as ServingDefinition;
    return start<unknown>(createServing(definition, undefined, () => store));
  }

  /** Finishes the running batch with the output. */
  async function finish(...output: unknown[]): Promise<void> {
    await turn();
    batches.next().finish(output);
  }

  /** Holds lookups until the returned function is called. */
  function hold(): () => void {
    let open!: () => void;
    store.gate = new Promise((resolve) => (open = resolve));
    return open;
  }

  it('A call is answered with a copy of an earlier reply from the cache', async () => {
    const postprocess = jest.fn((output: unknown) => ({ output }));
    const serving = await cached({ postprocess });
    const first = serving.batchedRun('a');
    await finish({ legs: [4] });
    expect(await first).toEqual({ output: { legs: [4] } });

    type Animal = { output: { legs: number[] } };
    const found = (await Promise.all([serving.batchedRun('a'), serving.batchedRun('a')])) as [
      Animal,
      Animal,
    ];
    found[0].output.legs.push(5);
    expect([found[1], await serving.batchedRun('a')]).toEqual([
      { output: { legs: [4] } },
      { output: { legs: [4] } },
    ]);
    expect(postprocess).toHaveBeenCalledTimes(1);
    expect(batches.batches).toEqual([]);
  });

  it('Replies of other inputs, origins and servings are not mixed up in the cache', async () => {
    const serving = await cached({ queue: { separateOrigins: true } });
    const other = await cached({ name: 'other', queue: { separateOrigins: true } });
    const calls = [
      () => serving.batchedRun('a', { origin: 'http' }),
      () => serving.batchedRun('b', { origin: 'http' }),
      () => serving.batchedRun('a', { origin: 'ws' }),
      () => other.batchedRun('a', { origin: 'http' }),
    ];
    for (const [i, call] of calls.entries()) {
      const reply = call();
      await finish(i);
      await reply;
    }
    expect(await Promise.all(calls.map((call) => call()))).toEqual([0, 1, 2, 3]);
    expect([...store.entries.keys()]).toEqual([
      expect.stringMatching(/^nestjs-serving:4:held,1:1,-,4:http,-,43:.{43}$/),
      expect.stringMatching(/^nestjs-serving:4:held,1:1,-,4:http,-,43:.{43}$/),
      expect.stringMatching(/^nestjs-serving:4:held,1:1,-,2:ws,-,43:.{43}$/),
      expect.stringMatching(/^nestjs-serving:5:other,1:1,-,4:http,-,43:.{43}$/),
    ]);
  });

  it('[A6] The cache key is the one that the manual states', async () => {
    const key = textOf;
    const serving = await cached({ name: 'moods', deduplication: { ...caching, key } });
    const reply = serving.batchedRun({ text: 'hello' });
    await finish('glad');
    await reply;
    const [cacheKey] = store.entries.keys();
    expect(cacheKey).toBe('nestjs-serving:5:moods,1:1,-,-,-,5:hello');
    expect(readFileSync('docs/batches.md', 'utf8')).toContain(`\`${cacheKey}\``);
  });

  it('A call is not looked up when the key function returns undefined', async () => {
    const serving = await cached({ deduplication: { ...caching, key: () => undefined } });
    const reply = serving.batchedRun('a');
    await finish('A');
    expect(await reply).toBe('A');
    expect([store.asked, store.sets]).toEqual([[], 0]);
  });

  it('Without single flight, equal calls that miss the cache each run, and with it they share one lookup, run and entry', async () => {
    const alone = await cached({ deduplication: { ...caching, key: String } });
    const apart = [alone.batchedRun('a'), alone.batchedRun('a')];
    await finish(1, 2);
    expect(await Promise.all(apart)).toEqual([1, 2]);
    expect([store.asked.length, store.sets]).toEqual([2, 2]);

    const joined = await cached({
      name: 'joined',
      deduplication: { ...caching, singleFlight: true, key: String },
    });
    const together = [joined.batchedRun('a'), joined.batchedRun('a')];
    await finish('A');
    expect(await Promise.all(together)).toEqual(['A', 'A']);
    expect([store.asked.length, store.sets]).toEqual([3, 3]);
  });

  it('Calls that share a lookup each get a copy of the cached reply', async () => {
    const serving = await cached({ deduplication: { ...caching, singleFlight: true } });
    const first = serving.batchedRun('a');
    await finish({ legs: [4] });
    await first;

    type Animal = { legs: number[] };
    const found = (await Promise.all([serving.batchedRun('a'), serving.batchedRun('a')])) as [
      Animal,
      Animal,
    ];
    found[0].legs.push(5);
    expect(found[1]).toEqual({ legs: [4] });
    expect(store.asked).toHaveLength(2);
  });

  it('[6.1] Errors are not cached', async () => {
    const serving = await cached();
    const failing = serving.batchedRun('a');
    await finish(new Error('no such animal'));
    await expect(failing).rejects.toThrow('no such animal');
    expect(store.sets).toBe(0);

    const unshaped = await cached({
      name: 'unshaped',
      postprocess: () => Promise.reject(new Error('no words')),
    });
    const reply = unshaped.batchedRun('a');
    await finish('A');
    await expect(reply).rejects.toThrow('no words');
    expect(store.sets).toBe(0);
  });

  it.each([
    [20, { ttl: 1000, timeout: 20 }],
    [100, { ttl: 1000 }],
  ])('A call goes on without a store that does not answer within %i ms', async (timeout, cache) => {
    hold();
    const serving = await cached({ deduplication: { cache } });
    const reply = serving.batchedRun('a');
    await later(timeout - 1);
    expect(batches.batches).toEqual([]);
    await later(1);
    await finish('A');
    expect(await reply).toBe('A');
  });

  it('A call goes on when its reply cannot be stored', async () => {
    const url = new URL('https://example.com');
    const serving = await cached({ postprocess: () => url });
    const reply = serving.batchedRun('a');
    await finish('A');
    expect(await reply).toBe(url);
    expect(store.sets).toBe(0);
  });

  it('[7.3] A call that is cancelled during its lookup ends at once, and nothing runs for it', async () => {
    const preprocess = jest.fn((batch: unknown) => ({ batch }));
    const open = hold();
    const serving = await cached({ preprocess });
    const leaving = new AbortController();
    const left = serving.batchedRun('a', leaving);
    leaving.abort(reason);
    await expect(left).rejects.toBe(reason);
    open();
    await turn();
    expect(preprocess).not.toHaveBeenCalled();
  });

  it.each([
    ['without preprocessing', undefined],
    ['with preprocessing', async (batch: unknown) => (await turn(), { batch })],
  ])(
    '[9.3] A call whose lookup is in progress at shutdown is finished %s',
    async (_, preprocess) => {
      const open = hold();
      const serving = await cached({ preprocess });
      const reply = serving.batchedRun('a');
      const closed = serving.close();
      await expect(serving.batchedRun('b')).rejects.toThrow(ServingClosedError);
      open();
      await turn();
      await finish('A');
      expect(await reply).toBe('A');
      await closed;
    },
  );

  it('[9.3] A call whose lookup is in progress at shutdown is answered with the closed error when draining is off', async () => {
    const open = hold();
    const serving = await cached({ shutdown: { drain: false } });
    const reply = serving.batchedRun('a');
    const refused = expect(reply).rejects.toThrow(ServingClosedError);
    const closed = serving.close();
    open();
    await Promise.all([refused, closed]);
  });

  it('[12.1] A call that the cache answers is reported with no rows', async () => {
    const serving = await cached();
    const ends: unknown[] = [];
    serving
      .eventsOf('call:end')
      .subscribe(({ rows, answeredBy, preprocessing, waiting, running, error }) => {
        ends.push({ rows, answeredBy, preprocessing, waiting, running, error });
      });
    const first = serving.batchedRun('a');
    await finish('A');
    await first;
    const open = hold();
    const second = serving.batchedRun('a');
    await later(3);
    open();
    await second;
    expect(ends).toEqual([
      {
        rows: 1,
        answeredBy: undefined,
        preprocessing: 0,
        waiting: 0,
        running: 0,
        error: undefined,
      },
      { rows: 0, answeredBy: 'cache', preprocessing: 3, waiting: 0, running: 0, error: undefined },
    ]);
  });

  it('[3.1] Inline runs and streams are not looked up in the cache', async () => {
    const serving = await cached();
    const replies = [serving.run('a'), serving.run('a')];
    await finish(1);
    await finish(2);
    expect(await Promise.all(replies)).toEqual([1, 2]);
    expect(store.asked).toEqual([]);
  });

  it('A warning is logged when calls go on without the cache', async () => {
    const warnings = recordWarnings();
    const serving = await cached({ deduplication: { cache: { ttl: 1000, timeout: 1 } } });
    hold();
    const reply = serving.batchedRun('a');
    await later(1);
    await finish('A');
    await reply;
    expect(warnings).toEqual([
      expect.stringContaining('serving "held": A reply was not found: no answer within 1 ms'),
    ]);
  });
});

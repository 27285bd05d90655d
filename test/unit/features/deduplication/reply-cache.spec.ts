import { afterEach, beforeEach, describe, expect, it, jest } from '@jest/globals';
import { createServing, type LocalServing } from 'nestjs-serving';
import { recordWarnings } from '../../../fixtures/recorded-warnings.js';
import { useServings } from '../../../fixtures/serving/use-servings.js';
import { later, timers, turn, useVirtualTime } from '../../../fixtures/async/virtual-time.js';

interface Store {
  get(key: string): Promise<unknown>;
  set(key: string, value: string, ttl: number): Promise<unknown>;
}

interface Answers {
  readonly name?: string;
  readonly answer?: (row: string) => unknown;
  readonly postprocess?: () => unknown;
}

describe('The cache of a serving', () => {
  useVirtualTime();
  const start = useServings();
  let warnings: string[];
  let runs: string[];

  beforeEach(() => {
    warnings = recordWarnings();
    runs = [];
  });

  afterEach(() => void jest.restoreAllMocks());

  /** A serving whose replies are those of `answer`, in the store. */
  function cached(
    store: Store,
    {
      name = 'animals',
      answer = (row: string): unknown => ({ of: row, legs: [4] }),
      ...callbacks
    }: Answers = {},
  ): Promise<LocalServing> {
    const definition = {
      ...callbacks,
      name,
      rollout: { version: 'a' },
      deduplication: { cache: { ttl: 60_000 }, key: (row: string) => row },
      model: {
        useFactory: () => (rows: string[]) => {
          runs.push(...rows);
          return rows.map(answer);
        },
      },
    };
    return start(createServing(definition, undefined, () => store) as LocalServing);
  }

  it('A reply is stored with its ttl under the name of its serving, and answers the next call', async () => {
    const store = new RecordingStore();
    const serving = await cached(store);

    const reply = await serving.batchedRun('cat');
    await turn();

    expect(await serving.batchedRun('cat')).toEqual(reply);
    expect(runs).toEqual(['cat']);
    expect(store.sets).toEqual([[expect.stringContaining('nestjs-serving:7:animals,'), 60_000]]);
    await (await cached(store, { name: 'other' })).batchedRun('cat');
    expect(runs).toEqual(['cat', 'cat']);
    expect(warnings).toEqual([]);
  });

  it('A reply that is undefined is found, too', async () => {
    const serving = await cached(new RecordingStore(), { answer: () => undefined });
    await serving.batchedRun('nothing');
    await turn();

    expect(await serving.batchedRun('nothing')).toBeUndefined();
    expect(runs).toEqual(['nothing']);
  });

  it('Each call gets a copy of the stored reply', async () => {
    const serving = await cached(new RecordingStore());
    await serving.batchedRun('cat');
    await turn();

    const both = await Promise.all([serving.batchedRun('cat'), serving.batchedRun('cat')]);
    const [one, other] = both as { legs: number[] }[];
    expect(one).toEqual(other);
    expect(one!.legs).not.toBe(other!.legs);
  });

  it('A failing store counts as empty, with one warning a minute', async () => {
    const error = new Error('connection refused');
    const failing = { get: () => Promise.reject(error), set: () => Promise.reject(error) };
    const serving = await cached(failing);
    const notFound =
      'The cache of serving "animals": A reply was not found: connection refused; calls go on without';

    await serving.batchedRun('cat');
    await later(59_999);
    await serving.batchedRun('cat');
    expect(runs).toEqual(['cat', 'cat']);
    expect(warnings).toEqual([notFound]);
    await later(1);
    await serving.batchedRun('cat');
    await turn();
    expect(warnings).toEqual([notFound, notFound]);
  });

  it('A store that fails to keep a reply leads to a warning that says so', async () => {
    const error = new Error('connection refused');
    const serving = await cached({ get: async () => undefined, set: () => Promise.reject(error) });

    await serving.batchedRun('cat');
    await turn();

    expect(warnings).toEqual([
      'The cache of serving "animals": A reply was not kept: connection refused; calls go on without',
    ]);
  });

  it('A store that throws counts as a failing store', async () => {
    const serving = await cached({ get: broken, set: broken });

    expect(await serving.batchedRun('cat')).toEqual({ of: 'cat', legs: [4] });
    await turn();
    expect(warnings).toHaveLength(1);
  });

  it('A store that does not answer is awaited no longer than the timeout', async () => {
    const silent = { get: () => new Promise(() => {}), set: () => new Promise(() => {}) };
    const serving = await cached(silent);
    const reply = serving.batchedRun('cat');

    await later(99);
    expect(runs).toEqual([]);
    await later(1);
    expect(await reply).toEqual({ of: 'cat', legs: [4] });
    expect(warnings[0]).toContain('no answer within 100 ms');
  });

  it('[W3] The keys of two servings never collide', async () => {
    const store = new RecordingStore();
    await (await cached(store, { name: 'embed' })).batchedRun('v2:7');
    await turn();
    await (await cached(store, { name: 'embed:v2' })).batchedRun('7');

    expect(runs).toEqual(['v2:7', '7']);
  });

  it('A store that has answered leaves no timer', async () => {
    const serving = await cached(new RecordingStore());
    const before = timers();

    await serving.batchedRun('cat');
    await turn();

    expect(timers()).toBe(before);
  });

  it.each([
    ['of another program', { legs: 4 }, 0],
    ['that V8 did not write', 'not what V8 writes', 1],
  ])('An entry %s counts as missing', async (_, entry, warned) => {
    const store = new RecordingStore();
    const serving = await cached(store);
    await serving.batchedRun('cat');
    await turn();
    store.entries.forEach((_value, key) => store.entries.set(key, entry));

    expect(await serving.batchedRun('cat')).toEqual({ of: 'cat', legs: [4] });
    expect(runs).toEqual(['cat', 'cat']);
    expect(warnings).toHaveLength(warned);
  });

  it('A reply that could not be restored is not stored, with a warning that gives the reason', async () => {
    const store = new RecordingStore();
    const address = new URL('https://example.com');
    const serving = await cached(store, { postprocess: () => address });

    expect(await serving.batchedRun('cat')).toBe(address);
    await turn();

    expect(store.sets).toEqual([]);
    expect(warnings[0]).toContain('an instance of URL');
  });

  it('The end of the serving waits for every lookup', async () => {
    const answers: (() => void)[] = [];
    const serving = await cached({
      get: () => new Promise((resolve) => answers.push(() => resolve(undefined))),
      set: () => Promise.resolve(),
    });
    const replies = Promise.all([serving.batchedRun('cat'), serving.batchedRun('dog')]);
    await turn();
    let isClosed = false;
    const closing = serving.close().then(() => (isClosed = true));

    answers[0]!();
    await turn();
    expect(isClosed).toBe(false);
    answers[1]!();
    expect(await replies).toHaveLength(2);
    await closing;
  });
});

const broken = (): never => {
  throw new Error('not connected');
};

class RecordingStore implements Store {
  readonly entries = new Map<string, unknown>();
  readonly sets: [key: string, ttl: number][] = [];

  get(key: string): Promise<unknown> {
    return Promise.resolve(this.entries.get(key));
  }

  set(key: string, value: string, ttl: number): Promise<unknown> {
    this.entries.set(key, value);
    this.sets.push([key, ttl]);
    return Promise.resolve(value);
  }
}

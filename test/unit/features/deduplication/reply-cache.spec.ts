import { afterEach, beforeEach, describe, expect, it, jest } from '@jest/globals';
import { ReplyCache, type ReplyStore } from '../../../lib/core/deduplication/reply-cache.js';
import { recordWarnings } from '../../fixtures/recorded-warnings.js';
import { later, microtasks, timers, useVirtualTime } from '../../fixtures/async/virtual-time.js';

describe('ReplyCache', () => {
  useVirtualTime();
  let warnings: string[];

  beforeEach(() => {
    warnings = recordWarnings();
  });

  afterEach(() => void jest.restoreAllMocks());

  it('The cache finds a stored reply under the name of its serving and the key', async () => {
    const store = new RecordingStore();
    const cache = cacheOver(store);

    expect(await cache.find('cat')).toBeUndefined();
    await cache.keep('cat', { legs: 4 });
    await cache.keep('nothing', undefined);

    expect(await cache.find('cat')).toEqual({ reply: { legs: 4 } });
    expect(await cache.find('nothing')).toEqual({ reply: undefined });
    expect(await cacheOver(store, 'other').find('cat')).toBeUndefined();
    expect(store.sets).toEqual([
      ['nestjs-serving:7:animals,1:a,-,cat', 60_000],
      ['nestjs-serving:7:animals,1:a,-,nothing', 60_000],
    ]);
    expect(warnings).toEqual([]);
  });

  it('Each lookup gets a copy of the stored reply', async () => {
    const cache = cacheOver(new RecordingStore());
    await cache.keep('cat', { legs: [4] });
    const [one, other] = await Promise.all([cache.find('cat'), cache.find('cat')]);
    expect((one!.reply as { legs: number[] }).legs).not.toBe(
      (other!.reply as { legs: number[] }).legs,
    );
  });

  it('A failing store counts as empty, with one warning a minute', async () => {
    const error = new Error('connection refused');
    const failing = { get: () => Promise.reject(error), set: () => Promise.reject(error) };
    const cache = cacheOver(failing);

    expect(await cache.find('cat')).toBeUndefined();
    await cache.keep('cat', 1);
    await later(59_999);
    expect(await cache.find('cat')).toBeUndefined();
    expect(warnings).toEqual([
      'The cache of serving "animals": A reply was not found: connection refused; calls go on without',
    ]);
    await later(1);
    await cache.keep('cat', 1);
    expect(warnings[1]).toBe(
      'The cache of serving "animals": A reply was not kept: connection refused; calls go on without',
    );
  });

  it('A store that throws counts as a failing store', async () => {
    const cache = cacheOver({ get: broken, set: broken });
    expect(await cache.find('cat')).toBeUndefined();
    await cache.keep('cat', 1);
    expect(warnings).toHaveLength(1);
  });

  it('A store that does not answer is awaited no longer than the timeout', async () => {
    const found = observe(
      cacheOver({ get: () => new Promise(() => {}), set: () => new Promise(() => {}) }).find('cat'),
    );
    await later(99);
    expect(found.settled).toBe(false);
    await later(1);
    expect(found).toEqual({ settled: true, value: undefined });
    expect(warnings[0]).toContain('no answer within 100 ms');
  });

  it('[W3] The keys of two servings never collide', async () => {
    const store = new RecordingStore();
    await cacheOver(store, 'embed').keep('v2:7', 'of embed');
    expect(await cacheOver(store, 'embed:v2').find('7')).toBeUndefined();
  });

  it('A store that has answered leaves no timer', async () => {
    await cacheOver(new RecordingStore()).find('cat');
    expect(timers()).toBe(0);
  });

  it('A foreign or unreadable entry counts as missing', async () => {
    const store = new RecordingStore();
    store.entries.set('nestjs-serving:7:animals,1:a,-,cat', { legs: 4 });
    store.entries.set('nestjs-serving:7:animals,1:a,-,dog', 'not what V8 writes');
    const cache = cacheOver(store);
    expect(await cache.find('cat')).toBeUndefined();
    expect(warnings).toEqual([]);
    expect(await cache.find('dog')).toBeUndefined();
    expect(warnings).toHaveLength(1);
  });

  it('A reply that could not be restored is not stored, with a warning that gives the reason', async () => {
    const store = new RecordingStore();
    await cacheOver(store).keep('cat', new URL('https://example.com'));
    expect(store.sets).toEqual([]);
    expect(warnings[0]).toContain('an instance of URL');
  });

  it('The cache is idle when every lookup has ended', async () => {
    const answers: ((value: unknown) => void)[] = [];
    const cache = cacheOver({
      get: () => new Promise((resolve) => answers.push(resolve)),
      set: () => Promise.resolve(),
    });
    await cache.idle();
    void cache.find('cat');
    void cache.find('dog');
    const idle = observe(cache.idle());

    answers[0]!(undefined);
    await microtasks();
    expect(idle.settled).toBe(false);
    answers[1]!(undefined);
    await microtasks();
    expect(idle.settled).toBe(true);
  });
});

const broken = (): never => {
  throw new Error('not connected');
};

class RecordingStore implements ReplyStore {
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

function cacheOver(store: ReplyStore, serving = 'animals', label = 'a'): ReplyCache {
  return new ReplyCache(
    store,
    { ttl: 60_000, timeout: 100 },
    { serving, label, content: undefined },
  );
}

function observe(promise: Promise<unknown>): { settled: boolean; value?: unknown } {
  const seen: { settled: boolean; value?: unknown } = { settled: false };
  void promise.then((value) => Object.assign(seen, { settled: true, value }));
  return seen;
}

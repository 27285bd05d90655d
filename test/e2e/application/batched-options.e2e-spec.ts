import { afterEach, beforeEach, describe, expect, it, jest } from '@jest/globals';
import { CacheModule } from '@nestjs/cache-manager';
import { Injectable, Logger, type OnModuleInit, Scope, type Type } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import {
  asCaller,
  Batched,
  type BatchedOptions,
  DeadlineExceededError,
  InvalidServingError,
  RequestTooLargeError,
  RunTimeoutError,
  ServingLoadError,
  ServingModule,
  ServingService,
} from 'nestjs-serving';
import { describeOnPlatforms } from '../../fixtures/partitions/platforms.js';
import { withServing } from '../../fixtures/serving/batched-methods.js';

/** A class whose batched method notes its batches, and fails those with "bad". */
function spellerWith(options: BatchedOptions): Type<Spelling> {
  @Injectable()
  class Speller implements Spelling, OnModuleInit {
    readonly batches: string[][] = [];
    private dictionary: string[] = [];
    private leave!: () => void;
    private readonly left = new Promise<void>((resolve) => (this.leave = resolve));

    beforeApplicationShutdown(): void {
      this.leave();
    }

    onModuleInit(): void {
      this.dictionary = ['loaded'];
    }

    @Batched(options)
    async spell(words: string[], counts: number[]): Promise<string[]> {
      this.batches.push(words.map((word, i) => `${word}${counts[i]}`));
      if (this.dictionary.length === 0) {
        throw new Error('There is no dictionary yet');
      }
      if (words.includes('never')) {
        await this.left;
      }
      if (words.includes('bad')) {
        throw new RangeError('bad');
      }
      return words.map((word, i) => word.repeat(counts[i]!));
    }
  }
  return Speller;
}

interface Spelling {
  readonly batches: readonly (readonly string[])[];
  spell(words: string[], counts: number[]): Promise<string[]>;
}

const withCache = (providers: Type[]) => ({
  imports: [ServingModule.forRoot(), CacheModule.register()],
  providers,
});

describeOnPlatforms('Options of @Batched()', (listen) => {
  async function started(options: BatchedOptions) {
    const Speller = spellerWith(options);
    const { app } = await listen(withServing({ providers: [Speller] }));
    const own: Spelling = app.get(Speller);
    return { own, speller: asCaller(own), app };
  }

  it('[N12] warmUp runs full batches of the example calls before the application listens, after onModuleInit of the class', async () => {
    const { own, speller, app } = await started({
      batchSize: 3,
      partitions: 2,
      warmUp: [
        ['a', 1],
        ['b', 2],
      ],
    });

    expect(own.batches.map((batch) => batch.join(' ')).toSorted()).toEqual([
      'a1 a1 a1',
      'a1 a1 a1',
      'b2 b2 b2',
      'b2 b2 b2',
    ]);
    expect(app.get(ServingService).counters().get('Speller.spell')).toMatchObject({ batches: 0 });
    expect(await speller.spell('c', 2)).toBe('cc');
  });

  it('[N12] With deduplication calls with the same arguments share a run', async () => {
    const { own, speller } = await started({ deduplication: { singleFlight: true } });

    const replies = await Promise.all([
      speller.spell('a', 1),
      speller.spell('a', 1),
      speller.spell('a', 2),
    ]);

    expect(replies).toEqual(['a', 'a', 'aa']);
    expect(own.batches.flat().toSorted()).toEqual(['a1', 'a2']);
  });

  it('[N12] deduplication.key gets the arguments, and undefined shares with no other', async () => {
    const { own, speller } = await started({
      deduplication: {
        singleFlight: true,
        key: (word: string, count: number) => (count === 1 ? word : undefined),
      },
    });

    await Promise.all([1, 1, 2, 2].map((count) => speller.spell('a', count)));

    expect(own.batches.flat().toSorted()).toEqual(['a1', 'a2', 'a2']);
  });

  it('[N12] Calls that share a run get the answer for the arguments as they were', async () => {
    @Injectable()
    class Sum {
      @Batched({ batchTimeout: 20, deduplication: { singleFlight: true } })
      of(lists: number[][]): number[] {
        return lists.map((list) => list.reduce((sum, n) => sum + n, 0));
      }
    }
    const { app } = await listen(withServing({ providers: [Sum] }));
    const sum = asCaller(app.get(Sum));
    const list = [1, 2];

    const first = sum.of(list);
    const second = sum.of([1, 2]);
    list.push(3);

    expect(await Promise.all([first, second])).toEqual([3, 3]);
  });

  it('[N12] Instances of one class share no answers', async () => {
    let instances = 0;

    @Injectable({ scope: Scope.TRANSIENT })
    class Counter {
      private readonly own = ++instances;

      @Batched({ deduplication: { singleFlight: true, cache: { ttl: 60_000 } } })
      count(words: string[]): string[] {
        return words.map((word) => `${word} ${this.own}`);
      }
    }

    @Injectable()
    class One {
      constructor(readonly counter: Counter) {}
    }

    @Injectable()
    class Other extends One {}
    const { app } = await listen(withCache([One, Other, Counter]));
    const counters = [app.get(One), app.get(Other)].map(({ counter }) => asCaller(counter));
    const calls = () => Promise.all(counters.map((counter) => counter.count('a')));

    const answers = await calls();
    expect(new Set(answers).size).toBe(2);
    expect(await calls()).toEqual(answers);
  });

  it('[N12] deduplication.cache keeps replies in the cache manager of the application', async () => {
    const Speller = spellerWith({ deduplication: { cache: { ttl: 60_000 } } });
    const { app } = await listen(withCache([Speller]));
    const speller = asCaller(app.get(Speller));

    expect([await speller.spell('a', 2), await speller.spell('a', 2)]).toEqual(['aa', 'aa']);
    expect(app.get(Speller).batches).toEqual([['a2']]);
  });

  it('[N12] A budget limits batches by the cost of their calls', async () => {
    const { own, speller } = await started({
      batchTimeout: 20,
      batchSize: { cost: { of: (_word: string, count: number) => count, most: 5 } },
    });

    const calls = [3, 2, 4].map((count) => speller.spell('a', count));

    expect(await Promise.all(calls)).toEqual(['aaa', 'aa', 'aaaa']);
    expect(own.batches).toEqual([['a3', 'a2'], ['a4']]);
    await expect(speller.spell('a', 6)).rejects.toThrow(RequestTooLargeError);
  });

  it('[N12] recovery runs a failed batch again in halves, until only the failing call fails', async () => {
    const { speller } = await started({ batchTimeout: 20, recovery: { idempotent: true } });

    const replies = await Promise.allSettled(
      ['a', 'bad', 'c'].map((word) => speller.spell(word, 1)),
    );

    expect(replies).toEqual([
      { status: 'fulfilled', value: 'a' },
      { status: 'rejected', reason: new RangeError('bad') },
      { status: 'fulfilled', value: 'c' },
    ]);
  });

  it('[N12] recovery.runTimeout and timeout.most end calls of a method that hangs', async () => {
    const { speller } = await started({ recovery: { runTimeout: 20 } });
    await expect(speller.spell('never', 1)).rejects.toThrow(RunTimeoutError);

    const { speller: impatient, app } = await started({ timeout: { most: 20 } });
    await expect(impatient.spell('never', 1)).rejects.toThrow(DeadlineExceededError);
    const servings = app.get(ServingService);
    const call = servings.batchedRun('Speller.spell', ['never', 1], { timeout: 60_000 });
    await expect(call).rejects.toThrow(DeadlineExceededError);
  });
});

async function boot(provider: Type): Promise<void> {
  const module = await Test.createTestingModule({
    imports: [ServingModule.forRoot({})],
    providers: [provider],
  }).compile();
  await module.createNestApplication({ logger: false }).init();
}

describe('Options of @Batched() that cannot work', () => {
  beforeEach(() => {
    jest.spyOn(Logger.prototype, 'error').mockImplementation(() => {});
  });
  afterEach(() => {
    jest.restoreAllMocks();
  });

  it.each<[string, BatchedOptions, string]>([
    [
      'a default timeout above the longest',
      { timeout: { default: 100, most: 50 } },
      'timeout.default 100 is more than timeout.most 50',
    ],
    [
      'a key for nothing',
      { deduplication: { key: () => 'a' } },
      'deduplication.key needs deduplication.singleFlight: true or deduplication.cache',
    ],
    [
      'halves of a method that may not run twice',
      { recovery: { isolateFailures: true } },
      'recovery.isolateFailures runs batches again, and needs recovery.idempotent: true',
    ],
    [
      'a cache without a cache manager',
      { deduplication: { cache: { ttl: 1000 } } },
      'has the option "deduplication.cache", and the application has no cache manager',
    ],
  ])('[N12] The boot fails for %s', async (_what, options, message) => {
    await expect(boot(spellerWith(options))).rejects.toThrow(InvalidServingError);
    await expect(boot(spellerWith(options))).rejects.toThrow(message);
  });

  it('[N12] The boot fails when the warm-up fails, and names the method', async () => {
    const booted = boot(spellerWith({ warmUp: [['bad', 1]] }));

    await expect(booted).rejects.toThrow(ServingLoadError);
    await expect(booted).rejects.toThrow(
      'Serving "Speller.spell": The warm-up with 32 rows of key "default" failed: bad',
    );
  });

  it('[N12] The boot fails for a warm-up in a class with several instances', async () => {
    @Injectable({ scope: Scope.TRANSIENT })
    class Counter {
      @Batched({ warmUp: [['a']] })
      count(words: string[]): number[] {
        return words.map(({ length }) => length);
      }
    }

    await expect(boot(Counter)).rejects.toThrow(
      'Counter.count has warmUp and a class with several instances, and only that of a singleton ' +
        'exists at the boot; leave warmUp out, or batch a method of a singleton',
    );
  });

  it.each<[string, object, string]>([
    [
      'an example that is no list of arguments',
      { warmUp: ['a'] },
      'option "warmUp" is [ \'a\' ]; allowed is a list of lists of arguments',
    ],
    ['an option of other servings', { sessions: {} }, 'unknown option "sessions" ({})'],
    [
      'a wrong option of a group',
      { recovery: { runTimeout: 0 } },
      'option "recovery.runTimeout" is 0',
    ],
    [
      'an option of workers',
      { recovery: { maxRestarts: 1 } },
      'unknown option "recovery.maxRestarts" (1)',
    ],
    [
      'rows of a call, which has one',
      { queue: { maxRowsPerCall: 1 } },
      'unknown option "queue.maxRowsPerCall" (1)',
    ],
  ])('[N12] The decorator refuses %s', (_what, options, message) => {
    const decorate = () => spellerWith(options);

    expect(decorate).toThrow(InvalidServingError);
    expect(decorate).toThrow(`@Batched() on Speller.spell: ${message}`);
  });
});

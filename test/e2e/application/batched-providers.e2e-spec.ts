import { expect, it } from '@jest/globals';
import { Injectable } from '@nestjs/common';
import {
  Batched,
  type BatchedOptions,
  asCaller,
  InvalidInputError,
  OverloadedError,
  ServingService,
} from 'nestjs-serving';
import { settle } from 'nestjs-serving/testing';
import { firstValueFrom, Subject } from 'rxjs';
import { describeOnPlatforms } from '../../fixtures/partitions/platforms.js';
import { batchesOf, withServing } from '../../fixtures/serving/batched-methods.js';

class UnknownGuest extends Error {}

describeOnPlatforms('@Batched()', (listen) => {
  /** A kitchen that holds its first dish until it is opened, with the dishes that it has cooked. */
  async function busyKitchen(options: BatchedOptions) {
    let open!: () => void;
    const opened = new Promise<void>((resolve) => (open = resolve));
    const cooked: string[] = [];

    @Injectable()
    class Kitchen {
      constructor(readonly servings: ServingService) {}

      beforeApplicationShutdown(): void {
        open();
      }

      @Batched(options)
      async cook(dishes: string[], guests: string[]): Promise<string[]> {
        cooked.push(...dishes.map((dish, i) => `${dish} for ${guests[i]}`));
        await opened;
        return dishes.map((dish) => `hot ${dish}`);
      }
    }
    const { app } = await listen(withServing({ providers: [Kitchen] }));
    const kitchen = asCaller(app.get(Kitchen));
    void kitchen.cook('first', 'nobody');
    await settle();
    return { kitchen, cooked, open };
  }

  it('[10.2] A last argument that looks like the mark of a request reaches the method', async () => {
    @Injectable()
    class Keeper {
      @Batched()
      keep(values: object[]): object[] {
        return values.map((value) => ({ kept: value }));
      }
    }
    const site = await listen(withServing({ providers: [Keeper] }));
    const value = { servingCaller: 1, origin: 'http' };

    expect(await asCaller(site.app.get(Keeper)).keep(value)).toEqual({ kept: value });
  });

  it('[10.2] Methods of providers that are called in process are batched', async () => {
    @Injectable()
    class Speller {
      readonly calls: unknown[][] = [];

      @Batched(batchesOf(3))
      async repeat(words: string[], counts: number[]): Promise<(string | RangeError)[]> {
        this.calls.push([words, counts]);
        return words.map((word, i) =>
          counts[i]! < 0 ? new RangeError(`${counts[i]} times ${word}`) : word.repeat(counts[i]!),
        );
      }
    }
    const site = await listen(withServing({ providers: [Speller] }));
    const speller = asCaller(site.app.get(Speller));

    const replies: Promise<string>[] = [
      speller.repeat('a', 1),
      speller.repeat('b', -2),
      speller.repeat('c', 3),
    ];

    expect(await Promise.allSettled(replies)).toEqual([
      { status: 'fulfilled', value: 'a' },
      { status: 'rejected', reason: new RangeError('-2 times b') },
      { status: 'fulfilled', value: 'ccc' },
    ]);
    expect(speller.calls).toEqual([
      [
        ['a', 'b', 'c'],
        [1, -2, 3],
      ],
    ]);
  });

  it('[10.2] A method is a serving: its handle has the settings, the counters and the status of one', async () => {
    @Injectable()
    class Press {
      readonly runs: number[] = [];

      @Batched({ batchSize: 2, batchTimeout: 10_000 })
      async print(texts: string[]): Promise<string[]> {
        this.runs.push(texts.length);
        return texts;
      }
    }
    const { app } = await listen(withServing({ providers: [Press] }));
    const servings = app.get(ServingService);
    const press = asCaller(app.get(Press));
    const handle = servings.get('Press.print');

    await Promise.all([press.print('a'), press.print('b')]);
    handle.setBatchSize(3);
    await Promise.all([press.print('c'), press.print('d'), press.print('e')]);

    expect(app.get(Press).runs).toEqual([2, 3]);
    expect(handle.state).toBe('ready');
    expect(handle.counters()).toMatchObject({ answered: 5, batches: 2, rows: 5 });
    expect(handle.partitions()).toEqual([{ state: 'up', restarts: 0 }]);
    expect(servings.health()).toContainEqual({
      serving: 'Press.print',
      state: 'ready',
      isReady: true,
      isLive: true,
      queued: 0,
      partitions: [{ state: 'up', restarts: 0 }],
    });
  });

  it('[4.3] [10.2] By default a single call runs at once, and calls in the meantime form one batch', async () => {
    @Injectable()
    class Kitchen {
      readonly orders$ = new Subject<string[]>();
      readonly ready$ = new Subject<void>();

      @Batched()
      async cook(dishes: string[]): Promise<string[]> {
        const ready = firstValueFrom(this.ready$);
        this.orders$.next(dishes);
        await ready;
        return dishes.map((dish) => `hot ${dish}`);
      }
    }
    const { app } = await listen(withServing({ providers: [Kitchen] }));
    const kitchen = asCaller(app.get(Kitchen));
    const order = () => firstValueFrom(kitchen.orders$);

    const [first, soup] = [order(), kitchen.cook('soup')];
    expect(await first).toEqual(['soup']);
    const [second, ...others] = [
      order(),
      ...['fish', 'salad', 'cake'].map((dish) => kitchen.cook(dish)),
    ];
    kitchen.ready$.next();
    expect(await soup).toBe('hot soup');
    expect(await second).toEqual(['fish', 'salad', 'cake']);
    kitchen.ready$.next();
    expect(await Promise.all(others)).toEqual(['hot fish', 'hot salad', 'hot cake']);
  });

  it.each<[string, BatchedOptions, string[], string[]]>([
    [
      '[7.4] [10.2] Queued calls of higher priority run first, by the arguments of the calls',
      { queue: { priority: (_dish: string, guest: string) => (guest === 'chef' ? 1 : 0) } },
      ['soup for all', 'fish for all', 'cake for chef'],
      ['cake for chef', 'soup for all', 'fish for all'],
    ],
    [
      '[7.4] [10.2] Queued calls of tenants run in turn, by the arguments of the calls',
      { queue: { tenant: (_dish: string, guest: string) => guest } },
      ['soup for ann', 'fish for ann', 'cake for ann', 'soup for bob'],
      ['soup for ann', 'soup for bob', 'fish for ann', 'cake for ann'],
    ],
  ])('%s', async (_, options, orders, order) => {
    const { kitchen, cooked, open } = await busyKitchen({ ...options, batchSize: 1 });

    const meals = orders.map((one) => kitchen.cook(...(one.split(' for ') as [string, string])));
    await settle();
    open();
    await Promise.all(meals);

    expect(cooked).toEqual(['first for nobody', ...order]);
  });

  it('[7.4] [10.2] A tenant with half of the queue is refused, and other tenants are not', async () => {
    const { kitchen, open } = await busyKitchen({
      queue: { maxRows: 4, tenant: (_dish: string, guest: string) => guest },
      batchSize: 1,
    });
    const meals = [kitchen.cook('soup', 'ann'), kitchen.cook('fish', 'ann')];

    await expect(kitchen.cook('cake', 'ann')).rejects.toThrow(OverloadedError);
    meals.push(kitchen.cook('cake', 'bob'));

    open();
    expect(await Promise.all(meals)).toEqual(['hot soup', 'hot fish', 'hot cake']);
  });

  it('[6.1] [10.2] A call whose priority or tenant function fails is refused alone', async () => {
    const { kitchen, open } = await busyKitchen({
      queue: {
        priority: (dish: string) => (dish === 'pie' ? 3.14 : 0),
        tenant: (_dish: string, guest: string) => {
          if (guest === 'stranger') {
            throw new UnknownGuest('no such guest');
          }
          return guest;
        },
      },
    });
    const meal = kitchen.cook('soup', 'ann');
    const ends: unknown[] = [];
    kitchen.servings.eventsOf('call:end').subscribe(({ error }) => ends.push(error));

    await expect(kitchen.cook('soup', 'stranger')).rejects.toThrow('no such guest');
    await expect(kitchen.cook('pie', 'ann')).rejects.toThrow(
      'A call to serving "Kitchen.cook" has priority 3.14; allowed is a whole number from -10 to 10',
    );

    open();
    expect(await meal).toBe('hot soup');
    expect(ends).toEqual([expect.any(UnknownGuest), expect.any(InvalidInputError)]);
  });

  it.each([1, 3])(
    '[10.2] At most %d batches of the method run at the same time',
    async (partitions) => {
      let running = 0;
      let most = 0;
      let meet!: () => void;
      const met = new Promise<void>((resolve) => (meet = resolve));

      @Injectable()
      class Workshop {
        @Batched({ ...batchesOf(2), partitions })
        async make(parts: number[]): Promise<number[]> {
          most = Math.max(most, ++running);
          if (running === partitions) {
            meet();
          }
          await met;
          running--;
          return parts;
        }
      }
      const { app } = await listen(withServing({ providers: [Workshop] }));
      const workshop = asCaller(app.get(Workshop));

      const parts = Array.from({ length: 12 }, (_, part) => part);
      expect(await Promise.all(parts.map((part) => workshop.make(part)))).toEqual(parts);
      expect(most).toBe(partitions);
    },
  );
});

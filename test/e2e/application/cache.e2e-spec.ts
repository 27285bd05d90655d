import { afterEach, beforeEach, describe, expect, it, jest } from '@jest/globals';
import { CACHE_MANAGER, type Cache, CacheModule } from '@nestjs/cache-manager';
import { Body, Controller, Get, Injectable, Logger, Module, Post } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import {
  Batch,
  Batched,
  InvalidServingError,
  type ServingDefinition,
  type ServingHandler,
  ServingModule,
  ServingService,
  Tensor,
} from 'nestjs-serving';
import { overrideServing } from 'nestjs-serving/testing';
import { HeldFunction } from '../../fixtures/batching/held-function.js';
import { describeOnPlatforms } from '../../fixtures/partitions/platforms.js';
import { until } from '../../fixtures/async/streams.js';
import { worker } from '../../fixtures/partitions/worker.js';

const cache = { ttl: 60_000 };
const rowsOf = (batches: HeldFunction<unknown>): readonly unknown[] => batches.rows.flat();

@Controller()
class Texts {
  constructor(private readonly servings: ServingService) {}

  @Post('upper')
  upper(@Body() input: unknown): Promise<unknown> {
    return this.servings.batchedRun('upper', input);
  }

  @Post('batched')
  @Batched('upper')
  batched(@Body() input: unknown): unknown {
    return input;
  }

  @Get('ready')
  ready(): string {
    return 'ready';
  }
}

describeOnPlatforms('Equal requests', (listen) => {
  it('Equal requests over HTTP and @Batched() share one run while it is in progress', async () => {
    const batches = new HeldFunction<unknown>();
    const upper: ServingDefinition = {
      name: 'upper',
      deduplication: { singleFlight: true },
      model: { useFactory: batches.useFactory },
    };
    const site = await listen({
      imports: [ServingModule.forRoot({ servings: [upper] })],
      controllers: [Texts],
    });
    let called = 0;
    site.app
      .get(ServingService)
      .eventsOf('call:start')
      .subscribe(() => called++);

    const replies = Array.from({ length: 20 }, (_, i) =>
      i % 2 === 0
        ? site.post('/upper', { text: 'a', of: 1 })
        : site.post('/batched', { of: 1, text: 'a' }),
    );
    await until(() => called === 20 && batches.batches.length > 0);
    expect(rowsOf(batches)).toEqual([{ text: 'a', of: 1 }]);
    batches.next().finish([{ text: 'A' }]);

    const bodies = (await Promise.all(replies)).map(({ status, body }) => [status, body]);
    expect(new Set(bodies.map((body) => JSON.stringify(body)))).toEqual(
      new Set(['[201,{"text":"A"}]']),
    );
  });

  it('Later equal requests are answered from the cache of the application', async () => {
    const batches = new HeldFunction<unknown>();
    const upper: ServingDefinition = {
      name: 'upper',
      deduplication: { singleFlight: true, cache },
      model: { useFactory: batches.useFactory },
    };
    const imports = [CacheModule.register(), ServingModule.forRoot({ servings: [upper] })];
    const site = await listen({ imports, controllers: [Texts] });
    const first = site.post('/upper', { text: 'a' });
    await until(() => batches.batches.length > 0);
    batches.next().finish([{ text: 'A' }]);
    await first;

    expect(await site.post('/upper', { text: 'a' })).toMatchObject({
      status: 201,
      body: { text: 'A' },
    });
    expect(await site.post('/batched', { text: 'a' })).toMatchObject({
      status: 201,
      body: { text: 'A' },
    });
    await site.app.get<Cache>(CACHE_MANAGER).clear();
    const again = site.post('/upper', { text: 'a' });
    await until(() => batches.batches.length > 0);
    batches.next().finish([{ text: 'a new A' }]);
    expect(await again).toMatchObject({ body: { text: 'a new A' } });
  });
});

@Injectable()
class Doubler implements ServingHandler {
  handled = 0;

  init(): void {}

  handleBatch(batch: Batch): { output: Tensor } {
    this.handled += batch.size;
    const { data, dims } = batch.consume() as Tensor;
    // prettier-ignore
    return { output: new Tensor('float32', (data as Float32Array).map((x) => 2 * x), dims) };
  }
}

@Module({ providers: [Doubler], exports: [Doubler] })
class DoublerModule {}

const input = (): Batch => Batch.ofContainer(new Tensor('float32', [1, 2], [2, 1]));

function kinds(): Record<string, object> {
  const options = { name: 'doubling', deduplication: { cache } };
  return {
    'a class': ServingModule.forRoot({ servings: [{ ...options, model: { useClass: Doubler } }] }),
    'a provider': ServingModule.forRoot({
      imports: [DoublerModule],
      servings: [{ ...options, model: { useExisting: Doubler } }],
    }),
    'a file': ServingModule.forRoot({
      servings: [{ ...options, model: { useFile: worker('doubling') } }],
    }),
    'a serving of a factory': ServingModule.forRootAsync({
      names: ['doubling'],
      useFactory: () => ({ servings: [{ ...options, model: { useFile: worker('doubling') } }] }),
    }),
  };
}

describe('The cache of an application', () => {
  const closing: { close(): Promise<void> }[] = [];

  beforeEach(() => Logger.overrideLogger(false));

  afterEach(async () => {
    jest.restoreAllMocks();
    await Promise.all(closing.splice(0).map((app) => app.close()));
  });

  async function boot(imports: object[]): Promise<ServingService> {
    const app = await (
      await Test.createTestingModule({ imports: imports as never })

        .compile()
    ).init();
    closing.push(app);
    return app.get(ServingService);
  }

  it.each(Object.entries(kinds()))(
    '[1.2] [10.1] The cache keeps the replies of %s, tensors as tensors',
    async (_, module) => {
      const servings = await boot([CacheModule.register({ isGlobal: true }), module]);
      let batches = 0;
      servings.eventsOf('batch:start').subscribe(() => batches++);
      const replies: unknown[] = [];
      for (let i = 0; i < 3; i++) {
        replies.push(await servings.batchedRun('doubling', input()));
      }
      expect(batches).toBe(1);
      for (const reply of replies) {
        expect(reply).toBeInstanceOf(Tensor);
        expect([...((reply as Tensor).data as Float32Array)]).toEqual([2, 4]);
      }
      expect(replies[1]).not.toBe(replies[2]);
    },
  );

  it('[1.9] [9.1] An application without a cache manager fails to boot with a serving that has a cache', async () => {
    const upper: ServingDefinition = {
      name: 'upper',
      deduplication: { cache },
      model: { useFactory: () => (rows) => rows },
    };
    const booting = boot([ServingModule.forRoot({ servings: [upper] })]);
    await expect(booting).rejects.toThrow(InvalidServingError);
    await expect(booting).rejects.toThrow(
      'Serving "upper" has the option "deduplication.cache", and the application has no cache manager to keep replies in; ' +
        'import CacheModule.register() of @nestjs/cache-manager, or drop the option',
    );
  });

  it('A store that is down fails no call, and a store that writes JSON changes no reply', async () => {
    const entries = new Map<string, string>();
    const json = {
      get: async (key: string): Promise<unknown> =>
        entries.has(key) ? JSON.parse(entries.get(key)!) : undefined,
      set: async (key: string, value: unknown): Promise<void> =>
        void entries.set(key, JSON.stringify(value)),
    };
    const down = {
      get: () => Promise.reject(new Error('down')),
      set: () => Promise.reject(new Error('down')),
    };
    const vectors: ServingDefinition = {
      name: 'vectors',
      deduplication: { cache },
      model: {
        useFactory: () => (rows: unknown[]) =>
          rows.map(() => ({ vector: Float32Array.of(1, 2), at: new Date(0), n: 1n })),
      },
    };
    for (const store of [json, down]) {
      const servings = await boot([
        { module: StoreModule, providers: [{ provide: CACHE_MANAGER, useValue: store }] },
        ServingModule.forRoot({ servings: [vectors] }),
      ]);
      const replies = [
        await servings.batchedRun('vectors', 'a'),
        await servings.batchedRun('vectors', 'a'),
      ];
      expect(replies[1]).toStrictEqual(replies[0]);
    }
    expect(entries.size).toBe(1);
  });

  it('A reply is dropped from the cache when its time has passed', async () => {
    const servings = await boot([
      CacheModule.register({ isGlobal: true }),
      ServingModule.forRoot({ servings: [counting] }),
    ]);
    jest.useFakeTimers({
      doNotFake: ['setImmediate', 'nextTick', 'queueMicrotask', 'performance'],
    });
    try {
      expect(await servings.batchedRun('counting', 'a')).toBe(
        await servings.batchedRun('counting', 'a'),
      );
      jest.setSystemTime(Date.now() + 60_001);
      expect(await servings.batchedRun('counting', 'a')).toBe(2);
    } finally {
      jest.useRealTimers();
    }
  });

  it('The cache is not used by the replacement of a serving in a test', async () => {
    const upper: ServingDefinition<string> = {
      name: 'upper',
      deduplication: { cache },
      model: { useFactory: () => (rows) => rows },
    };
    const builder = Test.createTestingModule({
      imports: [ServingModule.forRoot({ servings: [upper] })],
    });
    const testing = await overrideServing(builder, upper)
      .useFunction((texts) => texts.map((text) => text.toUpperCase()))
      .compile();
    closing.push(await testing.init());
    expect(await testing.get(ServingService).batchedRun('upper', 'a')).toBe('A');
  });
});

let counted = 0;
const counting: ServingDefinition = {
  name: 'counting',
  deduplication: { cache },
  model: { useFactory: () => (rows: unknown[]) => rows.map(() => ++counted) },
};

@Module({})
class StoreModule {}

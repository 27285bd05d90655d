import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { type DynamicModule, Injectable, Module, type ModuleMetadata } from '@nestjs/common';
import { Test, type TestingModule, type TestingModuleBuilder } from '@nestjs/testing';
import {
  Batch,
  createServing,
  defineServing,
  InjectServing,
  InvalidServingError,
  type Origin,
  type ServingHandler,
  ServingModule,
  type ServingOf,
  ServingService,
  UnknownServingError,
  Tensor,
} from 'nestjs-serving';
import { BatchScript, overrideServing } from 'nestjs-serving/testing';

/** A model that cannot be loaded. */
const model = new TextEncoder().encode('no model at all');

const lengths = defineServing({
  name: 'lengths',
  model,
  batchSize: 2,
  batchKeys: ['default', { key: 'long', batchSize: 4 }],
  preprocess: (text: string) => ({
    batch: new Tensor('float32', [text.length], [1, 1]),
    info: text,
  }),
  postprocess: ({ y }: { y: Tensor }, { info }) => `${info}: ${String(y.data[0])}`,
});

/** The lifecycle events of the class of a class serving. */
let story: string[];

@Injectable()
class Upper implements ServingHandler {
  constructor() {
    story.push('constructed');
  }

  init(): void {
    story.push('initialised');
  }

  onModuleInit(): void {
    story.push('module initialised');
  }

  handleBatch(batch: Batch): { output: string[] } {
    return { output: (batch.consume() as string[]).map((text) => text.toUpperCase()) };
  }
}

@Module({ providers: [Upper], exports: [Upper] })
class UpperModule {}

describe('overrideServing', () => {
  const modules: TestingModule[] = [];

  beforeEach(() => {
    story = [];
  });

  afterEach(() => Promise.all(modules.splice(0).map((module) => module.close())));

  async function boot(
    metadata: ModuleMetadata | DynamicModule,
    override: (builder: TestingModuleBuilder) => TestingModuleBuilder,
  ): Promise<ServingService> {
    const imports = 'module' in metadata ? [metadata] : (metadata.imports ?? []);
    const module = await override(
      Test.createTestingModule({ ...('module' in metadata ? {} : metadata), imports }),
    ).compile();
    modules.push(module);
    await module.init();
    return module.get(ServingService);
  }

  it.each([undefined, null, 5, {}])(
    '[FU77] Another value than a serving or a script is refused: %p',
    (value) => {
      const builder = Test.createTestingModule({});

      expect(() => overrideServing(builder, value as string)).toThrow(
        /^overrideServing was given .+; give it the name of a serving, or its definition/,
      );
      expect(() => overrideServing(builder, lengths).useScript(value as BatchScript)).toThrow(
        /^useScript was given .+; give it a BatchScript/,
      );
    },
  );

  it('[16.1] A replacement of a model with state has sessions', async () => {
    const sums = defineServing({ name: 'sums', model: { file: model, state: { sum: 'total' } } });
    const servings = await boot(
      { imports: [ServingModule.forRoot({ servings: [sums] })] },
      (builder) =>
        overrideServing(builder, sums).useFunction((values: number[], { states }) =>
          values.map((value, row) => (states[row] = ((states[row] as number) ?? 0) + value)),
        ),
    );
    const session = servings.open<number, number>('sums');

    expect([await session.run(1), await session.run(2)]).toEqual([1, 3]);
  });

  it.each([
    ['forRoot', [ServingModule.forRoot({ servings: [lengths] })]],
    [
      'forRootAsync',
      [
        ServingModule.forRootAsync({
          names: ['lengths'],
          useFactory: () => ({ servings: [lengths] }),
        }),
      ],
    ],
    ['forFeature', [ServingModule.forRoot(), ServingModule.forFeature({ servings: [lengths] })]],
  ])(
    'A serving of %s is replaced by name or by definition, and loads no model',
    async (_, imports) => {
      for (const reference of ['lengths', lengths] as const) {
        const servings = await boot({ imports }, (builder) =>
          overrideServing(builder, reference as string).useFunction((texts: string[]) =>
            texts.map((text) => `${text}?`),
          ),
        );

        expect(servings.get('lengths').name).toBe('lengths');
        expect(
          await Promise.all(['a', 'b'].map((text) => servings.batchedRun('lengths', text))),
        ).toEqual(['a?', 'b?']);
        expect(await servings.run('lengths', 'c')).toBe('c?');
      }
    },
  );

  it('The replacement receives inputs and returns replies with the types of the definition', async () => {
    const batches: string[][] = [];
    const servings = await boot(ServingModule.forRoot({ servings: [lengths] }), (builder) =>
      overrideServing(builder, lengths).useFunction((texts) => {
        batches.push(texts);
        return texts.map((text) => (text === '' ? new RangeError('empty') : text.toUpperCase()));
      }),
    );

    const replies = await Promise.allSettled(
      ['a', 'b', ''].map((text) => servings.batchedRun(lengths, text)),
    );

    expect(replies).toEqual([
      { status: 'fulfilled', value: 'A' },
      { status: 'fulfilled', value: 'B' },
      { status: 'rejected', reason: new RangeError('empty') },
    ]);
    expect(batches).toEqual([['a', 'b'], ['']]);
  });

  it('Functions and scripts of other types are refused by the compiler', () => {
    const override = overrideServing(Test.createTestingModule({}), lengths);

    // @ts-expect-error the input is a text
    override.useFunction((numbers: number[]) => numbers.map(String));
    // @ts-expect-error the output is a text
    override.useFunction((texts) => texts.map((text) => text.length));
    // @ts-expect-error the model gives { y }
    override.keepCallbacks().useFunction(() => ({ z: new Tensor('float32', [1], [1, 1]) }));
    // @ts-expect-error the input is a text
    override.useScript(new BatchScript<number, string>());
    override.useScript(BatchScript.of(lengths));
    override.useScript(new BatchScript());
    expect(override).toBeDefined();
  });

  it('keepCallbacks() keeps preprocess and postprocess and replaces only the model', async () => {
    const servings = await boot(ServingModule.forRoot({ servings: [lengths] }), (builder) =>
      overrideServing(builder, lengths)
        .keepCallbacks()
        .useFunction((x: Tensor) => ({
          y: new Tensor(
            'float32',
            (x.data as Float32Array).map((length) => 2 * length),
            x.dims,
          ),
        })),
    );

    expect(
      await Promise.all(['a', 'abc'].map((text) => servings.batchedRun(lengths, text))),
    ).toEqual(['a: 2', 'abc: 6']);
  });

  it('keepCallbacks() is refused for a serving given by name', () => {
    const override = overrideServing(Test.createTestingModule({}), 'lengths');

    expect(() => override.keepCallbacks()).toThrow(
      new InvalidServingError(
        'overrideServing knows no callbacks of "lengths", which it was given by name; give it the definition',
      ),
    );
  });

  it('The replacement keeps the batching options of the definition', async () => {
    const script = BatchScript.of(lengths);
    const servings = await boot(ServingModule.forRoot({ servings: [lengths] }), (builder) =>
      overrideServing(builder, lengths).useScript(script),
    );
    const rows = Batch.stack(['a', 'b', 'c', 'd']);
    const sizes: [string, number][] = [];

    const replies = Promise.all(
      [rows, rows.withKey('long')].map((batch) => servings.batchedRun('lengths', batch)),
    );
    for (let batches = 0; batches < 3; batches++) {
      const { key, size } = await script.next();
      sizes.push([key, size]);
      script.batches[0]!.finish((texts) => texts);
    }

    expect(sizes).toEqual([
      ['default', 2],
      ['default', 2],
      ['long', 4],
    ]);
    await replies;
  });

  it('[M8] The replacement drops retry and cache options, which need the model or a cache', async () => {
    const cached = defineServing({
      ...lengths,
      recovery: { retries: 3, isolateFailures: true },
      deduplication: { cache: { ttl: 1000 }, key: (text: string) => text },
    });
    const script = BatchScript.of(cached);
    const servings = await boot(ServingModule.forRoot({ servings: [cached] }), (builder) =>
      overrideServing(builder, cached).useScript(script),
    );

    const reply = servings.batchedRun(cached, 'abc');
    (await script.next()).finish((rows) => rows);

    await expect(reply).resolves.toBe('abc');
  });

  it('The replacement drops warm-up, fixed sizes, devices and session options, which need the model', async () => {
    const compiled = defineServing({
      ...lengths,
      model: {
        file: model,
        session: { executionProviders: ['cuda'] },
        inputs: { x: { batchAxis: 0 } },
        fetches: ['y'],
      },
      partitions: true,
      batchSize: [2, 8],
      batchKeys: ['default', 'long'],
      warmUp: ['example'],
    });
    const script = BatchScript.of(compiled);
    const servings = await boot(ServingModule.forRoot({ servings: [compiled] }), (builder) =>
      overrideServing(builder, compiled).useScript(script),
    );
    const texts = Array.from({ length: 11 }, (__, i) => `${i}`);

    const replies = Promise.all(texts.map((text) => servings.batchedRun(compiled, text)));
    const full = await script.next();
    expect([full.size, full.padding]).toEqual([8, 0]);
    expect(script.batches).toEqual([full]);
    script.release((rows) => rows);

    expect(await replies).toEqual(texts);
  });

  it('[2.4] With keepCallbacks() the replacement keeps fixed sizes', async () => {
    const compiled = defineServing({ ...lengths, batchSize: [4] });
    const script = new BatchScript<Tensor, { y: Tensor }>();
    const servings = await boot(ServingModule.forRoot({ servings: [compiled] }), (builder) =>
      overrideServing(builder, compiled).keepCallbacks().useScript(script),
    );

    const reply = servings.batchedRun(compiled, 'abc');
    const batch = await script.next();
    expect([batch.size, batch.padding, batch.rows.dims]).toEqual([1, 3, [4, 1]]);
    batch.finish((y) => ({ y }));

    expect(await reply).toBe('abc: 3');
  });

  it('[4.10] The replacement separates origins as the serving does', async () => {
    const apart = defineServing({ ...lengths, queue: { separateOrigins: true } });
    const origins: (Origin | undefined)[] = [];
    const servings = await boot(
      ServingModule.forRoot({ servings: [apart], requestContext: true }),
      (builder) =>
        overrideServing(builder, apart).useFunction(
          (texts, { origin }) => (origins.push(origin), texts),
        ),
    );

    await servings.batchedRun(apart, 'a');

    expect(origins).toEqual(['in-process']);
  });

  it('The class of a replaced serving is neither constructed nor initialised', async () => {
    const upper = defineServing({ name: 'upper', model: { useClass: Upper } });
    const servings = await boot(ServingModule.forRoot({ servings: [upper] }), (builder) =>
      overrideServing(builder, upper).useFunction((rows: unknown[]) => rows),
    );

    expect(await servings.batchedRun('upper', 'a')).toBe('a');
    expect(story).toEqual([]);
  });

  it('An existing provider of a replaced serving is constructed and not initialised as a serving', async () => {
    const upper = defineServing({ name: 'upper', model: { useExisting: Upper } });
    const imports = [UpperModule, ServingModule.forRoot({ servings: [upper] })];
    const servings = await boot({ imports }, (builder) =>
      overrideServing(builder, 'upper').useFunction((rows) => rows),
    );

    expect(await servings.batchedRun('upper', 'a')).toBe('a');
    expect(story).toEqual(['constructed', 'module initialised']);
  });

  it('Providers that inject the serving receive the replacement', async () => {
    @Injectable()
    class Reader {
      constructor(@InjectServing(lengths) readonly serving: ServingOf<typeof lengths>) {}
    }

    const servings = await boot(
      { imports: [ServingModule.forRoot({ servings: [lengths] })], providers: [Reader] },
      (builder) => overrideServing(builder, lengths).useFunction((texts) => texts),
    );

    expect(modules[0]!.get(Reader).serving).toBe(servings.get(lengths));
    expect(await modules[0]!.get(Reader).serving.batchedRun('a')).toBe('a');
  });

  it('Several servings of one application can be replaced', async () => {
    const other = defineServing({ name: 'other', model });
    const servings = await boot(ServingModule.forRoot({ servings: [lengths, other] }), (builder) =>
      overrideServing(
        overrideServing(builder, lengths).useFunction((texts) => texts),
        'other',
      ).useFunction((rows) => rows.map(() => 0)),
    );

    expect(
      await Promise.all(['lengths', 'other'].map((name) => servings.batchedRun(name, 'a'))),
    ).toEqual(['a', 0]);
  });

  it('[10.5] Replacing an unknown serving fails the start of the application', async () => {
    const booting = boot(
      ServingModule.forRoot({
        servings: [{ name: 'there', model: { useFactory: () => (rows: unknown[]) => rows } }],
      }),
      (builder) =>
        overrideServing(
          overrideServing(builder, 'their').useFunction((rows) => rows),
          'there',
        ).useFunction((rows) => rows),
    );

    await expect(booting).rejects.toThrow(
      new UnknownServingError('There is no serving "their"; registered are: there'),
    );
  });

  it('A replacement changes neither the definition nor other applications', async () => {
    const twice = defineServing({
      name: 'twice',
      model: { useFactory: () => (rows: number[]) => rows.map((row) => 2 * row) },
    });
    const imports = [ServingModule.forRoot({ servings: [twice] })];
    const overridden = await boot({ imports }, (builder) =>
      overrideServing(builder, twice).useFunction((rows) => rows),
    );
    const plain = await boot({ imports }, (builder) => builder);

    expect(
      await Promise.all([overridden, plain].map((servings) => servings.batchedRun('twice', 2))),
    ).toEqual([2, 4]);
    expect(await createServing(twice).run(3)).toBe(6);
  });
});

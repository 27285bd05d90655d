import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import {
  Body,
  Controller,
  type DynamicModule,
  Get,
  Injectable,
  Module,
  type ModuleMetadata,
  Next,
  type OnApplicationBootstrap,
  type OnModuleInit,
  Param,
  Query,
  Res,
  Sse,
  type Type,
} from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import {
  type Batch,
  Batched,
  asCaller,
  defineServing,
  getServingToken,
  InjectServing,
  InvalidServingError,
  Serving,
  type ServingDefinition,
  type ServingHandler,
  ServingModule,
  type ServingOf,
  ServingService,
  UnknownServingError,
} from 'nestjs-serving';
import type { ServingKind } from '../../../lib/partitions/handler.partition.js';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { firstValueFrom, toArray } from 'rxjs';
import { describeOnPlatforms, type Site } from '../../fixtures/partitions/platforms.js';
import { worker } from '../../fixtures/partitions/worker.js';

/** Adds `mark` to every text. */
const marking = (name: string, mark: string, batchSize = 32) =>
  defineServing({
    name,
    batchSize,
    batchTimeout: batchSize < 32 ? 1_000_000 : 0,
    preprocess: (text: string) => ({ batch: text }),
    useFactory: () => (rows: string[]) => rows.map((row) => row + mark),
    postprocess: (text: string) => text,
  });

const loud = marking('loud', '!');

@Controller()
class Texts {
  @InjectServing(loud) private readonly byDefinition!: ServingOf<typeof loud>;

  constructor(
    @InjectServing('loud') private readonly byName: Serving<string, string>,
    private readonly servings: ServingService,
  ) {}

  @Get('handle/:text')
  handle(@Param('text') text: string): Promise<string> {
    return this.byName.batchedRun(text);
  }

  @Get('inline/:text')
  inline(@Param('text') text: string): Promise<string> {
    return this.byDefinition.run(text);
  }

  @Get('service/:text')
  service(@Param('text') text: string): Promise<string> {
    return this.servings.batchedRun(loud, text);
  }

  @Get('service-by-name/:text')
  serviceByName(@Param('text') text: string): Promise<unknown> {
    return this.servings.batchedRun('loud', text);
  }

  @Get('service-inline/:text')
  serviceInline(@Param('text') text: string): Promise<string> {
    return this.servings.run(loud, text);
  }

  @Get('service-get/:text')
  serviceGet(@Param('text') text: string): Promise<string> {
    return this.servings.get(loud).batchedRun(text);
  }

  @Get('method/:text')
  @Batched('loud')
  method(@Param('text') text: string): string {
    return text;
  }
}

const ways = [
  'handle',
  'inline',
  'service',
  'service-by-name',
  'service-inline',
  'service-get',
  'method',
];

async function expectEveryWay(site: Site, mark: string): Promise<void> {
  const replies = await Promise.all(ways.map((way) => site.get(`/${way}/${way}`)));
  expect(replies.map(({ body }) => body)).toEqual(ways.map((way) => way + mark));
}

@Module({ providers: [{ provide: 'mark', useValue: '?' }], exports: ['mark'] })
class MarkModule {}

@Injectable()
class MarkOptions {
  create() {
    return { servings: [marking('loud', '~')] };
  }
}

const run = async (text: string) => `${text} of a fake`;
const fake = { name: 'loud', run, batchedRun: run };

describeOnPlatforms('ServingModule', (listen) => {
  it.each<[string, DynamicModule, string]>([
    ['forRoot', ServingModule.forRoot({ servings: [loud] }), '!'],
    [
      'forRootAsync with a factory',
      ServingModule.forRootAsync({
        names: ['loud'],
        imports: [MarkModule],
        inject: ['mark'],
        useFactory: async (mark: string) => ({ servings: [marking('loud', mark)] }),
      }),
      '?',
    ],
    [
      'forRootAsync with a class',
      ServingModule.forRootAsync({ names: ['loud'], useClass: MarkOptions }),
      '~',
    ],
  ])(
    '[3.3] [10.1] Servings of %s are available by handle, by service and by method',
    async (_, module, mark) => {
      await expectEveryWay(await listen({ imports: [module], controllers: [Texts] }), mark);
    },
  );

  it('[10.1] A serving of forFeature is injectable in the module that registers it and available to the service everywhere', async () => {
    @Module({ imports: [ServingModule.forFeature({ servings: [loud] })], controllers: [Texts] })
    class TextModule {}

    const site = await listen({
      imports: [ServingModule.forRoot({ servings: [marking('quiet', '.')] }), TextModule],
    });

    await expectEveryWay(site, '!');
    const servings = site.app.get(ServingService);
    expect(
      await Promise.all(['loud', 'quiet'].map((name) => servings.batchedRun(name, 'text'))),
    ).toEqual(['text!', 'text.']);
  });

  it.each<[string, unknown]>([
    ['null', null],
    ['a symbol', Symbol('loud')],
    ['the name of an object member', '__proto__'],
    ['a long text', 'x'.repeat(100_000)],
    ['an object with such a name', { name: { toString: () => 'loud' } }],
    [
      'a definition that cannot be read',
      Object.defineProperty({}, 'name', { get: () => JSON.parse('') as unknown }),
    ],
  ])('[6.5] An unknown serving is refused with a short message: %s', async (_, name) => {
    const servings = (
      await listen({ imports: [ServingModule.forRoot({ servings: [loud] })] })
    ).app.get(ServingService);

    const refused = servings.batchedRun(name as never, 'text');

    await expect(refused).rejects.toThrow(UnknownServingError);
    await expect(refused).rejects.toMatchObject({
      message: expect.stringMatching(/^There is no serving .{0,400}$/),
    });
    expect(() => servings.stream(name as never, 'text')).toThrow(UnknownServingError);
  });

  it('[10.1] A module that is not global serves only the modules that import it', async () => {
    const module = ServingModule.forRoot({ servings: [loud], isGlobal: false });

    @Module({ imports: [module], controllers: [Texts] })
    class TextModule {}

    @Module({ controllers: [Texts] })
    class OtherModule {}

    await expectEveryWay(await listen({ imports: [TextModule] }), '!');
    await expect(boot({ imports: [TextModule, OtherModule] })).rejects.toThrow('OtherModule');
  });

  it('[3.3] A serving that is overridden by its token loads no model', async () => {
    const digits = defineServing({
      name: 'loud',
      model: new TextEncoder().encode('no model at all'),
    });
    const site = await listen(
      { imports: [ServingModule.forRoot({ servings: [digits] })], controllers: [Texts] },
      {
        override: (builder) => builder.overrideProvider(getServingToken(digits)).useValue(fake),
      },
    );

    await expectEveryWay(site, ' of a fake');
  });

  it('[9.4] Two applications with the same classes do not share servings, also at the same time', async () => {
    const sites = await Promise.all(
      ['!', '?'].map((mark) =>
        listen({
          imports: [ServingModule.forRoot({ servings: [marking('loud', mark, 2)] })],
          controllers: [Texts, Meetings],
        }),
      ),
    );
    const events = sites.map(({ app }) =>
      firstValueFrom(app.get(ServingService).eventsOf('batch:end').pipe(toArray())),
    );
    const [one, other] = sites as [Site, Site];

    const replies = await Promise.all(
      [one, other, one, other].flatMap((site, i) => [
        site.get(`/method/${i}`),
        site.get(`/meetings/${i}`),
      ]),
    );

    expect(replies.map(({ body }) => body)).toEqual([
      '0!',
      '0,2',
      '1?',
      '1,3',
      '2!',
      '0,2',
      '3?',
      '1,3',
    ]);
    await one.app.close();
    expect(
      (await Promise.all([4, 5].map((i) => other.get(`/method/${i}`)))).map(({ body }) => body),
    ).toEqual(['4?', '5?']);
    await other.app.close();
    const batches = (await Promise.all(events)).map((own) =>
      own.map(({ serving, rows }) => `${rows} in ${serving}`),
    );
    expect(batches.map((own) => own.toSorted())).toEqual([
      ['2 in Meetings.meet', '2 in loud'],
      ['2 in Meetings.meet', '2 in loud', '2 in loud'],
    ]);
  });
});

@Controller('meetings')
class Meetings {
  @Get(':name')
  @Batched({ batchSize: 2, batchTimeout: 1_000_000 })
  meet(@Param('name') names: string[]): string[] {
    return names.map(() => names.toSorted().join(','));
  }
}

@Injectable()
class Dictionary {
  /** The lifecycle events of its users, in order. */
  readonly story: unknown[] = [];

  reverse(word: string): string {
    return word.split('').toReversed().join('');
  }
}

@Module({ providers: [Dictionary], exports: [Dictionary] })
class DictionaryModule {}

@Injectable()
class Reverser implements ServingHandler<string[]>, OnApplicationBootstrap {
  constructor(private readonly dictionary: Dictionary) {}

  async init(kind: ServingKind, partitions: readonly object[]): Promise<void> {
    this.dictionary.story.push([kind, partitions]);
  }

  onApplicationBootstrap(): void {
    this.dictionary.story.push('bootstrap');
  }

  handleBatch(batch: Batch, partition: number): { output: string[] } {
    this.dictionary.story.push([partition, batch.size]);
    return { output: (batch.consume() as string[]).map((word) => this.dictionary.reverse(word)) };
  }
}

describeOnPlatforms('A class serving', (listen) => {
  const options = {
    name: 'reverser',
    batchSize: 2,
    batchTimeout: 1_000_000,
    partitions: [{ memory: 'short' }],
  };
  const byClass: ServingDefinition = { ...options, useClass: Reverser };
  const byToken: ServingDefinition = { ...options, useExisting: Reverser };
  const nextToIt = { imports: [DictionaryModule], providers: [Reverser], exports: [Reverser] };

  it.each<[string, DynamicModule[]]>([
    [
      'useClass in forRoot',
      [ServingModule.forRoot({ servings: [byClass], imports: [DictionaryModule] })],
    ],
    [
      'useClass in forFeature',
      [
        ServingModule.forRoot(),
        ServingModule.forFeature({ servings: [byClass], imports: [DictionaryModule] }),
      ],
    ],
    [
      'useExisting in forRoot',
      [ServingModule.forRoot({ servings: [byToken] }), { module: MarkModule, ...nextToIt }],
    ],
    [
      'useExisting in forRootAsync',
      [
        ServingModule.forRootAsync({
          names: ['reverser'],
          useFactory: () => ({ servings: [byToken] }),
        }),
        { module: MarkModule, ...nextToIt },
      ],
    ],
  ])(
    '[1.2] A class gets its dependencies and is initialised before the application starts: %s',
    async (_, imports) => {
      const { app } = await listen({ imports });
      const reverser = app.get<Serving<string, string>>(getServingToken('reverser'));

      expect(await Promise.all([reverser.batchedRun('live'), reverser.batchedRun('tar')])).toEqual([
        'evil',
        'rat',
      ]);

      expect(app.get(Dictionary).story).toEqual([
        ['batched', [{ memory: 'short', batchKeys: ['default'] }]],
        'bootstrap',
        [0, 2],
      ]);
    },
  );
});

describeOnPlatforms('Servings while the application starts and runs', (listen) => {
  it('[9.1] Servings can be called in onModuleInit, wherever they are registered', async () => {
    @Injectable()
    class Early implements OnModuleInit {
      readonly heard: unknown[] = [];

      constructor(private readonly servings: ServingService) {}

      async onModuleInit(): Promise<void> {
        this.heard.push(
          await this.servings.batchedRun('loud', 'a'),
          await this.servings.run('quiet', 'b'),
        );
        this.heard.push(await asCaller(this).echo('c'));
      }

      @Batched()
      echo(texts: string[]): string[] {
        return texts;
      }
    }

    @Module({
      imports: [ServingModule.forFeature({ servings: [marking('quiet', '.')] })],
      providers: [Early],
    })
    class EarlyModule {}

    const { app } = await listen({
      imports: [EarlyModule, ServingModule.forRoot({ servings: [loud] })],
    });

    expect(app.get(Early).heard).toEqual(['a!', 'b.', 'c']);
  });

  it('[10.1] The service emits the batches of all servings in one stream, which completes with the application', async () => {
    const imports = [
      ServingModule.forRoot({ servings: [marking('loud', '!', 2)] }),
      ServingModule.forFeature({ servings: [marking('quiet', '.', 2)] }),
    ];
    const { app } = await listen({ imports, controllers: [Meetings] });
    const servings = app.get(ServingService);
    const events = firstValueFrom(servings.eventsOf('batch:end').pipe(toArray()));

    const meetings = asCaller(app.get(Meetings));
    await Promise.all(
      ['loud', 'quiet', 'loud', 'quiet'].map((name) => servings.batchedRun(name, 'text')),
    );
    await Promise.all([meetings.meet('ann'), meetings.meet('bob')]);
    await app.close();

    const event = {
      type: 'batch:end',
      batch: 1,
      key: 'default',
      partition: 0,
      rows: 2,
      batchSize: 2,
      fill: 1,
      reason: 'full',
      padding: 0,
      queued: 0,
      calls: [],
    };
    const duration = expect.any(Number);
    expect(await events).toEqual(
      ['loud', 'quiet', 'Meetings.meet'].map((serving) => ({
        ...event,
        serving,
        wait: duration,
        runTime: duration,
      })),
    );
  });
});

/** Starts and ends an application. Rejects with the error of the boot. */
async function boot(metadata: ModuleMetadata): Promise<void> {
  @Module(metadata)
  class AppModule {}

  const app = await NestFactory.create(AppModule, { logger: false, abortOnError: false });
  try {
    await app.init();
  } finally {
    await app.close();
  }
}

const servingsOf = (...servings: ServingDefinition[]): ModuleMetadata => ({
  imports: [ServingModule.forRoot({ servings })],
});

/** The servings of a factory that declares `names`. */
const factoryOf = (names: string[], ...servings: ServingDefinition[]): ModuleMetadata => ({
  imports: [ServingModule.forRootAsync({ names, useFactory: () => ({ servings }) })],
});

const featureOf = (serving: ServingDefinition): Type => {
  @Module({ imports: [ServingModule.forFeature({ servings: [serving] })] })
  class FeatureModule {}
  return FeatureModule;
};

/** A controller whose batched method has a parameter with this decorator. */
const controllerTaking = (Parameter: ParameterDecorator, ...others: MethodDecorator[]): Type => {
  @Controller()
  class Wrong {
    @Get()
    @Batched()
    handle(@Parameter values: unknown[]): unknown[] {
      return values;
    }
  }
  others.forEach((other) => decorate(other, Wrong.prototype, 'handle'));
  return Wrong;
};

@Injectable()
class Lost {
  @Batched('nowhere')
  ask(question: string): string {
    return question;
  }
}

@Injectable()
class Longing {
  @InjectServing('nowhere') readonly serving!: Serving;
}

describe('Wrong wiring', () => {
  it.each<[string, string, () => ModuleMetadata]>([
    [
      '@Batched() with an unknown serving',
      'There is no serving "nowhere"; registered are: loud',
      () => ({ ...servingsOf(loud), providers: [Lost] }),
    ],
    [
      '@InjectServing() with an unknown serving',
      'Serving:nowhere',
      () => ({ ...servingsOf(loud), providers: [Longing] }),
    ],
    ['@Batched() without ServingModule', 'BatchedMethods', () => ({ controllers: [Meetings] })],
    [
      'one name twice in a list',
      'Serving "loud" is registered more than once',
      () => servingsOf(loud, marking('loud', '?')),
    ],
    [
      'one name in two modules',
      'Serving "loud" is registered more than once, the second time in ServingModule',
      () => ({
        imports: [ServingModule.forRoot(), featureOf(loud), featureOf(marking('loud', '?'))],
      }),
    ],
    [
      'one name in the root module and another',
      'Serving "loud" is registered more than once',
      () => ({ imports: [ServingModule.forRoot({ servings: [loud] }), featureOf(loud)] }),
    ],
    [
      'a factory that defines more than its names',
      'defines [loud], but "names" lists []',
      () => factoryOf([], loud),
    ],
    [
      'a factory that defines less than its names',
      'defines [], but "names" lists [loud]',
      () => factoryOf(['loud']),
    ],
    [
      'a factory that defines others than its names',
      'defines [loud], but "names" lists [low]',
      () => factoryOf(['low'], loud),
    ],
    [
      'a factory that defines one name twice',
      'Serving "loud" is registered more than once',
      () => factoryOf(['loud', 'loud'], loud, marking('loud', '?')),
    ],
    [
      'a factory that defines a class serving',
      'forRootAsync cannot create Reverser',
      () => factoryOf(['reverser'], { name: 'reverser', useClass: Reverser }),
    ],
    [
      'a definition with an option out of bounds',
      'Serving "loud" with "useFactory": option "batchSize" is 0; allowed is a whole number from 1',
      () => servingsOf({ ...loud, batchSize: 0 }),
    ],
    [
      'a missing model file',
      'Serving "m": there is no file /nowhere.onnx',
      () => servingsOf({ name: 'm', model: '/nowhere.onnx' }),
    ],
    [
      '@Batched() with @Res()',
      'Wrong.handle takes the raw response',
      () => ({ ...servingsOf(), controllers: [controllerTaking(Res())] }),
    ],
    [
      '@Batched() with @Next()',
      'Wrong.handle takes the raw response',
      () => ({ ...servingsOf(), controllers: [controllerTaking(Next())] }),
    ],
    [
      '@Batched() with @Sse()',
      'Wrong.handle is @Sse() and @Batched()',
      () => ({ ...servingsOf(), controllers: [controllerTaking(Param('id'), Sse())] }),
    ],
    [
      'a whole @Body() without types',
      'Parameter 0 of Wrong.handle is the whole body',
      () => ({ ...servingsOf(), controllers: [controllerTaking(Body())] }),
    ],
    [
      'a whole @Query() without types',
      'Parameter 0 of Wrong.handle is the whole query',
      () => ({ ...servingsOf(), controllers: [controllerTaking(Query())] }),
    ],
    [
      'all @Param() without types',
      'Parameter 0 of Wrong.handle is the whole path parameters',
      () => ({ ...servingsOf(), controllers: [controllerTaking(Param())] }),
    ],
  ])('[10.5] Wrong wiring fails the boot: %s', async (_, message, metadata) => {
    await expect((async () => boot(metadata()))()).rejects.toThrow(message);
  });

  it.each<[string, string, () => void]>([
    ['a static method', 'the static method Thing.make', () => decorate(Batched(), Thing, 'make')],
    ['a getter', 'Thing.size is not one', () => decorate(Batched(), Thing.prototype, 'size')],
    ['a property', 'Thing.name is not one', () => decorate(Batched(), Thing.prototype, 'name')],
    [
      'a method, with an option unknown to it',
      '@Batched() on Thing.use: unknown option "batchsize" (3)',
      () => decorate(Batched({ batchsize: 3 } as object), Thing.prototype, 'use'),
    ],
    [
      'a method, with a tenant that is no function',
      '@Batched() on Thing.use: option "queue.tenant" is "gold"; allowed is a function',
      () => decorate(Batched({ queue: { tenant: 'gold' } } as object), Thing.prototype, 'use'),
    ],
  ])('[10.5] @Batched() on %s is refused', (_, message, decorating) => {
    expect(decorating).toThrow(InvalidServingError);
    expect(decorating).toThrow(message);
  });

  it('[10.5] @Batched() is refused when the number of `types` differs from the number of parameters', () => {
    expect(() => {
      class Wrong {
        @Batched({ types: [String] })
        add(ones: string[], others: string[]): string[] {
          return [...ones, ...others];
        }
      }
      return Wrong;
    }).toThrow('@Batched() on Wrong.add names 1 types for 2 parameters');
  });
});

function decorate(how: unknown, target: object, key: string): void {
  (how as MethodDecorator)(target, key, Object.getOwnPropertyDescriptor(target, key)!);
}

class Thing {
  declare readonly name: string;

  static make(things: Thing[]): Thing[] {
    return things;
  }

  get size(): number {
    return 0;
  }

  use(times: number[]): number[] {
    return times;
  }
}

describe('A serving that cannot load', () => {
  let folder: string;

  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'serving-'));
  });

  afterAll(() => rm(folder, { recursive: true }));

  it.each<[string, ServingDefinition, RegExp]>([
    [
      'a model',
      { name: 'wrong', model: worker('diary') },
      /^Serving "wrong": Cannot load the model \S+diary\.mjs: .*protobuf/i,
    ],
    [
      'bytes',
      { name: 'wrong', model: new Uint8Array(3) },
      /^Serving "wrong": Cannot load the model of 3 bytes: .*protobuf/i,
    ],
    [
      'a file',
      { name: 'wrong', useFile: worker('no-default') },
      /^Serving "wrong": \S+no-default\.mjs must have a default export/,
    ],
    [
      'a function',
      { name: 'wrong', useFactory: () => Promise.reject(new Error('no weights')) },
      /^Serving "wrong" could not start: no weights$/,
    ],
  ])(
    '[9.1] A failed load fails the boot and leaves no thread of another serving: %s',
    async (kind, wrong, message) => {
      const diary = join(folder, `${kind}.txt`);
      await writeFile(diary, '');
      const right: ServingDefinition = {
        name: 'right',
        useFile: worker('diary'),
        partitions: [{ diary }, { diary }],
      };

      await expect(boot(servingsOf(right, wrong))).rejects.toThrow(message);

      const entries = (await readFile(diary, 'utf8')).trim().split('\n');
      expect(entries.toSorted()).toEqual(['ended', 'ended', 'started', 'started']);
    },
  );
});

import { expect, it } from '@jest/globals';
import {
  Controller,
  type DynamicModule,
  Get,
  Injectable,
  Module,
  type OnModuleInit,
  Param,
} from '@nestjs/common';
import {
  Batched,
  asCaller,
  defineServing,
  getServingToken,
  InjectServing,
  Serving,
  ServingModule,
  type ServingOf,
  ServingService,
  UnknownServingError,
} from 'nestjs-serving';
import { firstValueFrom, toArray } from 'rxjs';
import { describeOnPlatforms, type Site } from '../../fixtures/partitions/platforms.js';
import { boot, loud, marking, Meetings } from '../../fixtures/serving/text-servings.js';

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

describeOnPlatforms('Servings while the application starts and runs', (listen) => {
  it('[9.1] Servings can be called in onModuleInit, wherever they are registered', async () => {
    @Injectable()
    class Early implements OnModuleInit {
      readonly replies: unknown[] = [];

      constructor(private readonly servings: ServingService) {}

      async onModuleInit(): Promise<void> {
        this.replies.push(
          await this.servings.batchedRun('loud', 'a'),
          await this.servings.run('quiet', 'b'),
        );
        this.replies.push(await asCaller(this).echo('c'));
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

    expect(app.get(Early).replies).toEqual(['a!', 'b.', 'c']);
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
      version: '1',
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

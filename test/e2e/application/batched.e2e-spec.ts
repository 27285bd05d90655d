import { expect, it } from '@jest/globals';
import {
  type ArgumentsHost,
  Body,
  type CallHandler,
  type CanActivate,
  Catch,
  ConflictException,
  Controller,
  createParamDecorator,
  type ExceptionFilter,
  type ExecutionContext,
  Get,
  GoneException,
  Header,
  Headers,
  HttpCode,
  Inject,
  Injectable,
  type ModuleMetadata,
  type NestInterceptor,
  Param,
  ParseIntPipe,
  Post,
  type Provider,
  Query,
  Res,
  Scope,
  SetMetadata,
  type Type,
  UnprocessableEntityException,
  UseFilters,
  UseGuards,
  UseInterceptors,
  ValidationPipe,
} from '@nestjs/common';
import { ContextIdFactory, HttpAdapterHost, Reflector, REQUEST } from '@nestjs/core';
import { Transform } from 'class-transformer';
import { IsInt } from 'class-validator';
import {
  Batched,
  type BatchedOptions,
  type BatchEndEvent,
  asCaller,
  InvalidInputError,
  InvalidOutputError,
  OverloadedError,
  ServingClosedError,
  ServingModule,
  ServingService,
} from 'nestjs-serving';
import { settle } from 'nestjs-serving/testing';
import { firstValueFrom, map, type Observable, Subject } from 'rxjs';
import { describeOnPlatforms, type Reply } from '../../fixtures/partitions/platforms.js';

/** Batches of exactly this many calls, which only the size closes within a test. */
const batchesOf = (batchSize: number): BatchedOptions => ({ batchSize, batchTimeout: 1_000_000 });

const withServing = (metadata: ModuleMetadata): ModuleMetadata => ({
  ...metadata,
  imports: [ServingModule.forRoot()],
});

const times = <T>(count: number, ask: (index: number) => Promise<T>): Promise<T[]> =>
  Promise.all(Array.from({ length: count }, (_, index) => ask(index)));

const bodies = (replies: readonly Reply[]) => replies.map(({ body }) => body);
const served = (replies: readonly Reply[]) => bodies(replies.filter(({ status }) => status < 300));
const statuses = (replies: readonly Reply[]) => replies.map(({ status }) => status);

interface Incoming {
  readonly headers: Record<string, string | undefined>;
  readonly params: Record<string, string>;
}

interface Outgoing {
  header(name: string, value: string): void;
}

const incoming = (host: ArgumentsHost): Incoming => host.switchToHttp().getRequest();
const userOf = (host: ArgumentsHost): string | undefined => incoming(host).headers['x-user'];

const User = createParamDecorator((_: unknown, context: ExecutionContext) => userOf(context));

/** The metadata that a GraphQL resolver's context decorator leaves on its class. */
const Context: ParameterDecorator = (target, key, index) =>
  Reflect.defineMetadata(
    '__routeArguments__',
    { [`1:${index}`]: { index } },
    target.constructor,
    key!,
  );

@Injectable()
class Members implements CanActivate {
  canActivate(context: ExecutionContext): boolean {
    return userOf(context) !== 'stranger';
  }
}

@Injectable()
class Signature implements NestInterceptor {
  intercept(context: ExecutionContext, next: CallHandler<object>): Observable<object> {
    return next.handle().pipe(map((reply) => ({ ...reply, signed: userOf(context) })));
  }
}

class OutOfPaint extends Error {}

@Catch(OutOfPaint)
class OutOfPaintFilter implements ExceptionFilter<OutOfPaint> {
  constructor(private readonly host: HttpAdapterHost) {}

  catch(error: OutOfPaint, host: ArgumentsHost): void {
    this.host.httpAdapter.reply(
      host.switchToHttp().getResponse(),
      { sorry: userOf(host), because: error.message },
      507,
    );
  }
}

class ScoreDto {
  @IsInt()
  @Transform(({ value }) => Number(value))
  readonly points!: number;

  double(): number {
    return 2 * this.points;
  }
}

describeOnPlatforms('@Batched()', (listen) => {
  const start = async (...controllers: Type[]) => listen(withServing({ controllers }));

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

  it('[10.2] [10.4] The method runs once for concurrent requests, with an array per parameter', async () => {
    @Controller()
    class Scores {
      readonly calls: unknown[][] = [];

      @Post(':model')
      @Batched({ ...batchesOf(3), types: [Object, String, Object, String, String] })
      score(
        @Body() texts: object[],
        @Param('model') models: string[],
        @Query() queries: object[],
        @Headers('x-user') headers: string[],
        @User() users: string[],
      ) {
        this.calls.push([texts, models, queries, headers, users]);
        return models.map((model) => ({ model }));
      }
    }
    const site = await start(Scores);

    const replies = await Promise.all(
      ['a', 'b', 'c'].map((name) =>
        site.post(`/${name}?top=${name}1`, { text: name }, { 'x-user': `${name}2` }),
      ),
    );

    expect(bodies(replies)).toEqual([{ model: 'a' }, { model: 'b' }, { model: 'c' }]);
    const [call = [], ...others] = site.app.get(Scores).calls;
    expect(others).toEqual([]);
    const models = call[1] as string[];
    expect(models.toSorted()).toEqual(['a', 'b', 'c']);
    expect(call).toEqual([
      models.map((text) => ({ text })),
      models,
      models.map((model) => expect.objectContaining({ top: `${model}1` })),
      models.map((model) => `${model}2`),
      models.map((model) => `${model}2`),
    ]);
  });

  it('[10.2] Each request is validated and transformed by itself, with the classes in `types`', async () => {
    @Controller()
    class Scores {
      @Post(':points')
      @Batched({ ...batchesOf(2), types: [ScoreDto, ScoreDto, ScoreDto, Number] })
      sum(
        @Body() scores: ScoreDto[],
        @Param() params: ScoreDto[],
        @Query() queries: ScoreDto[],
        @Param('points') points: number[],
      ) {
        return scores.map((score, i) => [
          score.double(),
          params[i]!.double(),
          queries[i]!.double(),
          points[i],
        ]);
      }
    }
    const site = await listen(withServing({ controllers: [Scores] }), {
      configure: (app) => app.useGlobalPipes(new ValidationPipe({ transform: true })),
    });

    const replies = await Promise.all([
      site.post('/2?points=3', { points: '1' }),
      site.post('/2?points=3', { points: 'many' }),
      site.post('/2.5?points=3', { points: 1 }),
      site.post('/2?points=none', { points: 1 }),
      site.post('/5?points=6', { points: 4 }),
    ]);

    expect(statuses(replies)).toEqual([201, 400, 400, 400, 201]);
    expect(replies[1].body).toMatchObject({ message: ['points must be an integer number'] });
    expect(served(replies)).toEqual([
      [2, 4, 6, 2],
      [8, 10, 12, 5],
    ]);
  });

  it('[10.2] The pipes of a parameter apply to each request by itself', async () => {
    @Controller()
    class Numbers {
      @Get(':number')
      @Batched(batchesOf(2))
      next(@Param('number', ParseIntPipe) numbers: number[]) {
        return numbers.map((number) => ({ next: number + 1, of: numbers.length }));
      }
    }
    const site = await start(Numbers);

    const replies = await Promise.all(['/1', '/one', '/7'].map((path) => site.get(path)));

    expect(statuses(replies)).toEqual([200, 400, 200]);
    expect(served(replies)).toEqual([
      { next: 2, of: 2 },
      { next: 8, of: 2 },
    ]);
  });

  it('[10.2] Guards refuse and interceptors change each request by itself', async () => {
    @Controller()
    @UseGuards(Members)
    class Club {
      @Get(':text')
      @UseInterceptors(Signature)
      @Batched(batchesOf(2))
      echo(@Param('text') texts: string[]) {
        return texts.map((text) => ({ text, of: texts.length }));
      }
    }
    const site = await start(Club);

    const replies = await Promise.all(
      ['ann', 'stranger', 'bob'].map((user) => site.get(`/from-${user}`, { 'x-user': user })),
    );

    expect(statuses(replies)).toEqual([200, 403, 200]);
    expect(served(replies)).toEqual([
      { text: 'from-ann', of: 2, signed: 'ann' },
      { text: 'from-bob', of: 2, signed: 'bob' },
    ]);
  });

  it('[6.1] [10.2] An error thrown by the method reaches all callers of its batch and their exception filters unchanged', async () => {
    @Controller()
    @UseFilters(OutOfPaintFilter)
    class Painter {
      @Get('http/:color')
      @Batched(batchesOf(2))
      http(@Param('color') colors: string[]): string[] {
        throw new GoneException(`no more ${colors.toSorted().join(' and ')}`);
      }

      @Get('own/:color')
      @Batched(batchesOf(2))
      async own(@Param('color') colors: string[]): Promise<string[]> {
        if (colors.includes('blue')) {
          throw new OutOfPaint('the pot is empty');
        }
        return colors;
      }
    }
    const site = await start(Painter);
    const paint = (path: string) => site.get(path, { 'x-user': path });

    expect(await Promise.all(['/http/red', '/http/green'].map(paint))).toMatchObject([
      { status: 410, body: { message: 'no more green and red' } },
      { status: 410, body: { message: 'no more green and red' } },
    ]);
    expect(await Promise.all(['/own/red', '/own/blue'].map(paint))).toMatchObject([
      { status: 507, body: { sorry: '/own/red', because: 'the pot is empty' } },
      { status: 507, body: { sorry: '/own/blue', because: 'the pot is empty' } },
    ]);
    expect(statuses(await Promise.all(['/own/red', '/own/green'].map(paint)))).toEqual([200, 200]);
  });

  it('[6.2] An Error in place of a result fails one caller alone', async () => {
    const entries: Record<string, (text: string) => unknown> = {
      http: () => new ConflictException('taken'),
      own: () => new OutOfPaint('empty'),
      plain: () => new Error('secret'),
      fine: (text) => ({ text }),
    };

    @Controller()
    @UseFilters(OutOfPaintFilter)
    class Painter {
      @Get(':text')
      @Batched(batchesOf(4))
      paint(@Param('text') texts: string[]) {
        return texts.map((text) => entries[text]!(text));
      }
    }
    const site = await start(Painter);

    expect(
      await Promise.all(Object.keys(entries).map((text) => site.get(`/${text}`))),
    ).toMatchObject([
      { status: 409, body: { message: 'taken' } },
      { status: 507, body: { because: 'empty' } },
      { status: 500, body: { message: 'Internal server error' } },
      { status: 200, body: { text: 'fine' } },
    ]);
  });

  it.each(['above', 'below'])(
    '[10.2] Decorators %s @Batched() keep their effect on the method',
    async (path) => {
      @Injectable()
      class Judges implements CanActivate {
        constructor(private readonly reflector: Reflector) {}

        canActivate(context: ExecutionContext): boolean {
          return (
            this.reflector.get('for', context.getHandler()) === 'judges' &&
            context.getHandler().name === path
          );
        }
      }

      @Controller()
      class Court {
        @Post('above')
        @HttpCode(202)
        @Header('x-heard', 'yes')
        @SetMetadata('for', 'judges')
        @UseGuards(Judges)
        @UseInterceptors(Signature)
        @Batched(batchesOf(2))
        above(@Body('text') texts: string[]) {
          return texts.map((text) => ({ text }));
        }

        @Batched(batchesOf(2))
        @Post('below')
        @HttpCode(202)
        @Header('x-heard', 'yes')
        @SetMetadata('for', 'judges')
        @UseGuards(Judges)
        @UseInterceptors(Signature)
        below(@Body('text') texts: string[]) {
          return texts.map((text) => ({ text }));
        }
      }
      const site = await start(Court);

      const replies = await times(2, (i) =>
        site.post(`/${path}`, { text: `text ${i}` }, { 'x-user': `user ${i}` }),
      );

      expect(statuses(replies)).toEqual([202, 202]);
      expect(replies.map(({ headers }) => headers.get('x-heard'))).toEqual(['yes', 'yes']);
      expect(bodies(replies)).toEqual(
        [0, 1].map((i) => ({ text: `text ${i}`, signed: `user ${i}` })),
      );
    },
  );

  it('[10.2] An inherited method is batched separately for each controller', async () => {
    abstract class Greeter {
      abstract readonly greeting: string;

      @Get(':name')
      @Batched(batchesOf(2))
      greet(@Param('name') names: string[]) {
        return names.map((name) => ({ said: `${this.greeting} ${name}`, to: names.length }));
      }
    }

    @Controller('polite')
    class Polite extends Greeter {
      readonly greeting = 'Good morning';
    }

    @Controller('young')
    class Young extends Greeter {
      readonly greeting = 'Hi';
    }
    const site = await start(Polite, Young);
    const events: BatchEndEvent[] = [];
    site.app
      .get(ServingService)
      .eventsOf('batch:end')
      .subscribe((event) => events.push(event));

    const replies = await Promise.all(
      ['/polite/a', '/young/b', '/polite/c', '/young/d'].map((path) => site.get(path)),
    );

    expect(bodies(replies)).toEqual([
      { said: 'Good morning a', to: 2 },
      { said: 'Hi b', to: 2 },
      { said: 'Good morning c', to: 2 },
      { said: 'Hi d', to: 2 },
    ]);
    expect(events.map(({ serving }) => serving).toSorted()).toEqual([
      'Polite.greet',
      'Young.greet',
    ]);
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

  @Injectable()
  class Room {
    @Batched(batchesOf(2))
    async meet(names: string[]): Promise<{ room: Room; names: string[] }[]> {
      return names.map(() => ({ room: this, names }));
    }
  }

  /** Calls two instances by turns. Each must meet its own calls only. */
  async function expectApart(one: Room, other: Room): Promise<void> {
    expect(one).not.toBe(other);
    const met = await times(4, (i) => asCaller([one, other][i % 2]!).meet(`name ${i}`));
    expect(met.map(({ room }) => room)).toEqual([one, other, one, other]);
    expect(met.map(({ names }) => names)).toEqual(
      [0, 1, 0, 1].map((i) => [`name ${i}`, `name ${i + 2}`]),
    );
  }

  it.each<[string, () => object]>([
    ['useClass', () => ({ useClass: Room })],
    ['useFactory', () => ({ useFactory: () => new Room() })],
    ['useValue', () => ({ useValue: new Room() })],
  ])('[10.2] Calls of two instances of a class made with %s never mix', async (_, recipe) => {
    const providers = ['red', 'blue'].map((provide) => ({ provide, ...recipe() }) as Provider);
    const { app } = await listen(withServing({ providers }));

    await expectApart(app.get('red'), app.get('blue'));
  });

  it('[10.2] Calls of transient instances never mix', async () => {
    @Injectable({ scope: Scope.TRANSIENT })
    class Cabin extends Room {}

    @Injectable()
    class Ship {
      constructor(
        readonly stern: Cabin,
        @Inject('bridge') readonly bridge: { cabin: Cabin },
      ) {}
    }
    const bridge = {
      provide: 'bridge',
      inject: [Cabin],
      useFactory: (cabin: Cabin) => ({ cabin }),
    };
    const { app } = await listen(withServing({ providers: [Cabin, Ship, bridge] }));

    await expectApart(app.get(Ship).stern, app.get(Ship).bridge.cabin);
  });

  it('[10.2] Calls of different tenants of a durable provider never mix', async () => {
    @Injectable({ scope: Scope.REQUEST, durable: true })
    class Flat extends Room {}
    const { app } = await listen(withServing({ providers: [Flat] }));
    const [one, other] = await times(2, () => app.resolve(Flat, ContextIdFactory.create()));

    await expectApart(one!, other!);
  });

  it('[W11] Boot refuses @Batched() in a request-scoped class with the reason and advice', async () => {
    @Injectable({ scope: Scope.REQUEST })
    class Account {
      @Batched()
      load(names: string[]): string[] {
        return names;
      }
    }
    @Controller()
    class Desk {
      constructor(readonly account: Account) {}

      @Get(':name')
      @Batched()
      serve(@Param('name') names: string[]) {
        return names;
      }
    }
    @Injectable({ scope: Scope.TRANSIENT })
    class Clerk {
      @Inject(REQUEST) readonly request!: Incoming;

      @Batched()
      serve(names: string[]): string[] {
        return names;
      }
    }

    const refusals = [
      {
        metadata: { providers: [Account] },
        text: /Account\.load is @Batched\(\) and its class is request-scoped: a batch/,
      },
      {
        metadata: { controllers: [Desk], providers: [Account] },
        text: /Desk\.serve.*since it depends on Account: a batch/,
      },
      {
        metadata: { providers: [Clerk] },
        text: /Clerk\.serve.*since it depends on REQUEST: .*as arguments$/,
      },
    ];
    for (const { metadata, text } of refusals) {
      await expect(listen(withServing(metadata))).rejects.toThrow(text);
    }
  });

  it('[W11] @Batched() with the name of a serving runs on the instance of its own request', async () => {
    @Controller({ scope: Scope.REQUEST })
    class Desk {
      constructor(@Inject(REQUEST) readonly request: Incoming) {}

      @Get(':name')
      @Batched('echo')
      serve(@Param('name') name: string) {
        return { name, user: this.request.headers['x-user'] };
      }
    }
    const batches: number[] = [];
    const useFactory = () => (rows: object[]) => {
      batches.push(rows.length);
      return rows;
    };
    const site = await listen({
      controllers: [Desk],
      imports: [
        ServingModule.forRoot({ servings: [{ name: 'echo', useFactory, ...batchesOf(3) }] }),
      ],
    });

    const names = ['a', 'b', 'c'];
    const replies = await Promise.all(
      names.map((name) => site.get(`/${name}`, { 'x-user': `user ${name}` })),
    );

    expect(bodies(replies)).toEqual(names.map((name) => ({ name, user: `user ${name}` })));
    expect(batches).toEqual([3]);
  });

  it('[10.2] Request-scoped neighbours of a batched method keep their own requests', async () => {
    @Injectable({ scope: Scope.REQUEST })
    class Session {
      constructor(@Inject(REQUEST) private readonly request: Incoming) {}

      get user() {
        return this.request.headers['x-user'];
      }
    }

    @Injectable()
    class SessionSignature implements NestInterceptor {
      constructor(private readonly session: Session) {}

      intercept(_: ExecutionContext, next: CallHandler<object>): Observable<object> {
        return next.handle().pipe(map((reply) => ({ ...reply, signed: this.session.user })));
      }
    }

    @Controller('alone')
    class Alone {
      constructor(private readonly session: Session) {}

      @Get()
      alone() {
        return { user: this.session.user };
      }
    }

    @Controller()
    class Desk {
      @Get(':name')
      @UseInterceptors(SessionSignature)
      @Batched(batchesOf(2))
      serve(@Param('name') names: string[]) {
        return names.map((name) => ({ name, of: names.length }));
      }
    }
    const site = await listen(withServing({ controllers: [Alone, Desk], providers: [Session] }));

    const replies = await Promise.all(
      ['/a', '/alone', '/b'].map((path) => site.get(path, { 'x-user': `user of ${path}` })),
    );

    expect(bodies(replies)).toEqual([
      { name: 'a', of: 2, signed: 'user of /a' },
      { user: 'user of /alone' },
      { name: 'b', of: 2, signed: 'user of /b' },
    ]);
  });

  it('[10.2] A method with a passthrough response can set headers per request', async () => {
    @Controller()
    class Courteous {
      @Get(':name')
      @Batched(batchesOf(2))
      thank(@Param('name') names: string[], @Res({ passthrough: true }) responses: Outgoing[]) {
        responses.forEach((response, i) => response.header('x-thanks', names[i]!));
        return names.map((name) => ({ name }));
      }
    }
    const site = await start(Courteous);

    const replies = await Promise.all(['/ann', '/bob'].map((path) => site.get(path)));

    expect(bodies(replies)).toEqual([{ name: 'ann' }, { name: 'bob' }]);
    expect(replies.map(({ headers }) => headers.get('x-thanks'))).toEqual(['ann', 'bob']);
  });

  it('[10.4] The context parameter of a resolver, which looks like @Res() on a route, is accepted', async () => {
    @Injectable()
    class Resolver {
      @Batched()
      async resolve(@Context contexts: object[]): Promise<number[]> {
        return contexts.map((_, i) => i);
      }
    }
    const { app } = await listen(withServing({ providers: [Resolver] }));

    expect(await asCaller(app.get(Resolver)).resolve({})).toBe(0);
  });

  it('[9.3] Calls of a method are refused once the application has closed', async () => {
    @Injectable()
    class Attic extends Room {}
    const { app } = await listen(withServing({ providers: [Room, Attic] }));
    const [room, attic] = [asCaller(app.get(Room)), asCaller(app.get(Attic))];
    await times(2, () => room.meet('early'));

    await app.close();

    await expect(room.meet('late')).rejects.toThrow(ServingClosedError);
    await expect(attic.meet('late')).rejects.toThrow(ServingClosedError);
  });

  it.each<[string, unknown]>([
    ['1 results', ['one']],
    ['3 results', ['one', 'two', 'three']],
    ['string', 'ab'],
    ['undefined', undefined],
  ])('[6.3] A method that returns %s fails its batch alone', async (got, wrong) => {
    @Controller()
    class Careless {
      @Get(':text')
      @Batched(batchesOf(2))
      async echo(@Param('text') texts: string[]): Promise<string[]> {
        return texts.includes('bad') ? (wrong as string[]) : texts;
      }
    }
    const site = await start(Careless);
    const careless = asCaller(site.app.get(Careless));

    const expected = `Careless.echo ran for 2 callers and must return an array of 2 results; it returned ${got}`;
    expect(await Promise.allSettled([careless.echo('bad'), careless.echo('good')])).toEqual([
      { status: 'rejected', reason: new InvalidOutputError(expected) },
      { status: 'rejected', reason: new InvalidOutputError(expected) },
    ]);
    expect(statuses(await Promise.all(['/bad', '/good'].map((path) => site.get(path))))).toEqual([
      500, 500,
    ]);
    expect(bodies(await Promise.all(['/a', '/b'].map((path) => site.get(path))))).toEqual([
      'a',
      'b',
    ]);
  });

  it('[4.6] [10.2] Each of many concurrent requests gets its own reply, from few runs of the method', async () => {
    @Controller()
    class Mirror {
      readonly sizes: number[] = [];

      @Post(':id')
      @Batched({ batchSize: 20, batchTimeout: 1_000_000, types: [Object, String] })
      async reflect(@Body() texts: object[], @Param('id') ids: string[]) {
        this.sizes.push(ids.length);
        return ids.map((id, i) => ({ id, ...texts[i] }));
      }
    }
    const site = await start(Mirror);

    const replies = await times(300, (i) => site.post(`/${i}`, { text: `text ${i}` }));

    expect(bodies(replies)).toEqual(replies.map((_, i) => ({ id: String(i), text: `text ${i}` })));
    expect(site.app.get(Mirror).sizes).toEqual(Array.from({ length: 15 }, () => 20));
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
            throw new OutOfPaint('no such guest');
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
    expect(ends).toEqual([expect.any(OutOfPaint), expect.any(InvalidInputError)]);
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

  it('[10.3] The return value of the method is the input of the serving, whose output is the reply', async () => {
    const batches: string[][] = [];
    const shout = {
      name: 'shout',
      ...batchesOf(2),
      useFactory: () => (rows: string[]) => {
        batches.push(rows);
        return rows.map((row) => row.toUpperCase());
      },
      postprocess: (text: unknown) => ({ text }),
    };

    @Controller()
    class Crier {
      private readonly mark = '!';

      @Post(':count')
      @UseGuards(Members)
      @Batched('shout')
      async cry(@Body() { text }: { text: string }, @Param('count', ParseIntPipe) count: number) {
        if (count > 9) {
          throw new UnprocessableEntityException('too loud');
        }
        return text + this.mark.repeat(count);
      }
    }
    const site = await listen({
      controllers: [Crier],
      imports: [ServingModule.forRoot({ servings: [shout] })],
    });

    const replies = await Promise.all([
      site.post('/1', { text: 'hear' }),
      site.post('/some', { text: 'hear' }),
      site.post('/10', { text: 'hear' }),
      site.post('/1', { text: 'hear' }, { 'x-user': 'stranger' }),
      site.post('/2', { text: 'now' }),
    ]);

    expect(statuses(replies)).toEqual([201, 400, 422, 403, 201]);
    expect(served(replies)).toEqual([{ text: 'HEAR!' }, { text: 'NOW!!' }]);
    expect(batches.map((rows) => rows.toSorted())).toEqual([['hear!', 'now!!']]);
  });
});

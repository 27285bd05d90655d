import { expect, it } from '@jest/globals';
import {
  Body,
  type CallHandler,
  type CanActivate,
  Controller,
  createParamDecorator,
  type ExecutionContext,
  Get,
  Header,
  Headers,
  HttpCode,
  Injectable,
  type NestInterceptor,
  Param,
  ParseIntPipe,
  Post,
  Query,
  Res,
  SetMetadata,
  type Type,
  UnprocessableEntityException,
  UseGuards,
  UseInterceptors,
  ValidationPipe,
} from '@nestjs/common';
import { Reflector } from '@nestjs/core';
import { Transform } from 'class-transformer';
import { IsInt } from 'class-validator';
import {
  Batched,
  type BatchEndEvent,
  asCaller,
  ServingModule,
  ServingService,
} from 'nestjs-serving';
import { map, type Observable } from 'rxjs';
import {
  bodies,
  describeOnPlatforms,
  served,
  statuses,
} from '../../fixtures/partitions/platforms.js';
import { batchesOf, times, userOf, withServing } from '../../fixtures/serving/batched-methods.js';

interface Outgoing {
  header(name: string, value: string): void;
}

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

  it('[10.3] The return value of the method is the input of the serving, whose output is the reply', async () => {
    const batches: string[][] = [];
    const shout = {
      name: 'shout',
      ...batchesOf(2),
      model: {
        useFactory: () => (rows: string[]) => {
          batches.push(rows);
          return rows.map((row) => row.toUpperCase());
        },
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

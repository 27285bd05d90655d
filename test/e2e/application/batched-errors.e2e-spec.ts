import { expect, it } from '@jest/globals';
import {
  type ArgumentsHost,
  Catch,
  ConflictException,
  Controller,
  type ExceptionFilter,
  Get,
  GoneException,
  Param,
  type Type,
  UseFilters,
} from '@nestjs/common';
import { HttpAdapterHost } from '@nestjs/core';
import { Batched, asCaller, InvalidOutputError } from 'nestjs-serving';
import { bodies, describeOnPlatforms, statuses } from '../../fixtures/partitions/platforms.js';
import { batchesOf, userOf, withServing } from '../../fixtures/serving/batched-methods.js';

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

describeOnPlatforms('@Batched()', (listen) => {
  const start = async (...controllers: Type[]) => listen(withServing({ controllers }));

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

  it.each<[string, unknown]>([
    ['1 result', ['one']],
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
});

import { describe, expect, it } from '@jest/globals';
import {
  Body,
  Controller,
  Get,
  Injectable,
  Module,
  type ModuleMetadata,
  Next,
  Param,
  Query,
  Res,
  Sse,
  type Type,
} from '@nestjs/common';
import {
  type Batch,
  Batched,
  InjectServing,
  InvalidServingError,
  Serving,
  type ServingDefinition,
  type ServingHandler,
  ServingModule,
} from 'nestjs-serving';
import { boot, loud, marking, Meetings } from '../../fixtures/serving/text-servings.js';

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
class Reverser implements ServingHandler<string[]> {
  async init(): Promise<void> {}

  handleBatch(batch: Batch): { output: string[] } {
    return { output: batch.consume() as string[] };
  }
}

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
        // @ts-expect-error two parameters, one type
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

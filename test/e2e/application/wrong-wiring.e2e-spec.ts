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
  ServingService,
  type FunctionRunner,
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

const moduleOf = (metadata: ModuleMetadata): Type => {
  @Module(metadata)
  class Part {}
  return Part;
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
class Auditor {
  @Batched({ queue: { separateOrigins: true } })
  audit(texts: string[]): string[] {
    return texts;
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
class Inheriting extends Meetings {}

@Injectable()
class Caller {
  constructor(readonly servings: ServingService) {}
}

@Injectable()
class Longing {
  @InjectServing('nowhere') readonly serving!: Serving;
}

@Injectable()
class Talking {
  @Batched('loud')
  talk(text: string): string {
    return text;
  }
}

describe('Wrong wiring', () => {
  it.each<[string, string, () => ModuleMetadata]>([
    [
      '@Batched() with an unknown serving',
      'There is no serving "nowhere"; registered are: loud',
      () => ({ ...servingsOf(loud), providers: [Lost] }),
    ],
    [
      '[N4] a definition that is not there, as in a circle of imports',
      'ServingModule.forRoot was given undefined as the definition of a serving; if it is imported, ' +
        'does its file import this one, too? In such a circle it is not defined yet',
      () => servingsOf(loud, undefined as unknown as ServingDefinition),
    ],
    [
      '[N4] a definition without a name',
      'ServingModule.forFeature: option "name" of a serving is undefined; allowed is a string that is ' +
        'not empty',
      () => ({
        imports: [
          ServingModule.forRoot(),
          featureOf({
            model: { useFactory: () => (rows: unknown[]) => rows },
          } as unknown as ServingDefinition),
        ],
      }),
    ],
    [
      '[N4] a definition without a name, of a factory',
      'The factory of ServingModule.forRootAsync: option "name" of a serving is undefined',
      () =>
        factoryOf(['a'], { model: { useFactory: () => () => [] } } as unknown as ServingDefinition),
    ],
    [
      '@InjectServing() with an unknown serving',
      'Serving:nowhere (of servings in ServingModule.forRoot or forFeature',
      () => ({ ...servingsOf(loud), providers: [Longing] }),
    ],
    [
      '@InjectServing() with a serving of forRootAsync without names',
      'Serving:nowhere (of servings in ServingModule.forRoot or forFeature, of names in ' +
        'forRootAsync, or of remotes in ServingClusterModule)',
      () => ({
        imports: [ServingModule.forRootAsync({ useFactory: () => ({ servings: [loud] }) })],
        providers: [Longing],
      }),
    ],
    [
      '@Batched() without ServingModule',
      'Meetings.meet is @Batched(), and the application does not import ServingModule, which runs ' +
        'it: add ServingModule.forRoot() to the imports of the root module',
      () => ({ controllers: [Meetings] }),
    ],
    [
      '@Batched() with the name of a serving whose calls are made in sessions',
      'Talking.talk is @Batched("loud"), whose calls have a state; inject the serving and ' +
        'call serving.open().run(input)',
      () => ({
        ...servingsOf({ ...loud, model: { ...(loud.model as FunctionRunner), sessions: {} } }),
        providers: [Talking],
      }),
    ],
    [
      '@Batched() in a provider of a module without ServingModule',
      'Inheriting.meet is @Batched(), and the application does not import ServingModule',
      () => ({ imports: [moduleOf({ providers: [Inheriting] })] }),
    ],
    [
      'ServingModule by its class alone',
      'imports ServingModule without options: write ServingModule.forRoot({ servings: [...] })',
      () => ({ imports: [ServingModule] }),
    ],
    [
      'ServingModule by its class alone, with users of its servings',
      'imports ServingModule without options: write ServingModule.forRoot({ servings: [...] })',
      () => ({ imports: [ServingModule], controllers: [Meetings], providers: [Caller] }),
    ],
    [
      'forFeature without forRoot',
      'ServingModule.forFeature registers [loud], and the application has no ' +
        'ServingModule.forRoot(); import ServingModule.forRoot() in the root module',
      () => ({ imports: [featureOf(loud)] }),
    ],
    [
      'forRoot twice',
      'ServingModule.forRoot is imported 2 times, in AppModule and Part; import it once, in the ' +
        'root module, and use ServingModule.forFeature',
      () => ({ imports: [ServingModule.forRoot(), moduleOf(servingsOf(loud))] }),
    ],
    [
      'forRoot twice, with the same serving',
      'ServingModule.forRoot is imported 2 times',
      () => ({ imports: [moduleOf(servingsOf(loud)), moduleOf(servingsOf(loud))] }),
    ],
    [
      'an unknown option of forRoot',
      'ServingModule.forRoot: unknown option "serving" ([]); did you mean "servings"? known are',
      () => ({ imports: [ServingModule.forRoot({ serving: [] } as object)] }),
    ],
    [
      'an unknown option of forFeature',
      'ServingModule.forFeature: unknown option "Servings" ([]); did you mean "servings"?',
      () => ({ imports: [ServingModule.forFeature({ Servings: [] } as object)] }),
    ],
    [
      'names for forRoot',
      'ServingModule.forRoot: option "names" is [ \'loud\' ]; allowed is nothing here: only',
      () => ({ imports: [ServingModule.forRoot({ names: ['loud'] })] }),
    ],
    [
      'servings for forRootAsync',
      'option "servings" is []; allowed is nothing here: the factory returns them, and "names"',
      () => ({
        imports: [ServingModule.forRootAsync({ servings: [], useFactory: () => ({}) } as object)],
      }),
    ],
    [
      'an unknown option from a factory',
      'The factory of ServingModule.forRootAsync: unknown option "serving" ([]); did you mean',
      () => ({
        imports: [ServingModule.forRootAsync({ useFactory: () => ({ serving: [] }) as object })],
      }),
    ],
    [
      'a factory that defines servings, without names',
      'defines [loud], but "names" lists []; the two must be the same. Write ' +
        "ServingModule.forRootAsync({ names: ['loud'], ... })",
      () => ({
        imports: [ServingModule.forRootAsync({ useFactory: () => ({ servings: [loud] }) })],
      }),
    ],
    [
      'one name twice in a list',
      'Serving "loud" is registered more than once',
      () => servingsOf(loud, marking('loud', '?')),
    ],
    [
      'one name in two modules',
      'Serving "loud" is registered more than once, the second time in ServingFeatureModule',
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
      () => factoryOf(['reverser'], { name: 'reverser', model: { useClass: Reverser } }),
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
  ])('[10.5] [D5] Wrong wiring fails the boot: %s', async (_, message, metadata) => {
    await expect((async () => boot(metadata()))()).rejects.toThrow(message);
  });

  it.each<[string, () => ModuleMetadata]>([
    [
      'one forRoot in two modules',
      () => {
        const servings = servingsOf(loud);
        return { imports: [moduleOf(servings), moduleOf(servings)] };
      },
    ],
    [
      'a forRoot that is exported again by its class',
      () => {
        const servings = ServingModule.forRoot({ servings: [loud], isGlobal: false });
        const part = moduleOf({ imports: [servings], exports: [ServingModule] });
        return { imports: [part], providers: [Caller] };
      },
    ],
    [
      'several forFeature',
      () => ({
        imports: [ServingModule.forRoot(), featureOf(loud), featureOf(marking('low', '.'))],
      }),
    ],
    [
      '@Batched() in a module that does not import a ServingModule that is not global',
      () => ({
        imports: [
          moduleOf({ imports: [ServingModule.forRoot({ isGlobal: false })] }),
          moduleOf({ controllers: [Meetings], providers: [Inheriting] }),
        ],
      }),
    ],
  ])('[D5] Right wiring boots: %s', async (_, metadata) => {
    await expect(boot(metadata())).resolves.toBeUndefined();
  });

  it('[D5] A @Batched() method of an instance outside the application says where to get it', () => {
    expect(() => new Meetings().meet(['a'])).toThrow(
      'Meetings.meet is @Batched() and its instance is no provider of an application that has ' +
        'started with ServingModule.forRoot()',
    );
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

  it.each<[string, ModuleMetadata]>([
    ['audited', servingsOf({ ...loud, name: 'audited', queue: { separateOrigins: true } })],
    ['Auditor.audit', { imports: [ServingModule.forRoot()], providers: [Auditor] }],
  ])(
    '[R4] A boot fails where origins are separated and calls have none: %s',
    async (name, metadata) => {
      await expect(boot(metadata)).rejects.toThrow(
        new InvalidServingError(
          `Serving "${name}" has queue.separateOrigins, and the calls of this application have no ` +
            'origin; write ServingModule.forRoot({ requestContext: true, ... })',
        ),
      );
    },
  );
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

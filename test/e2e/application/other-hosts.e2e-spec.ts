import { configure } from '@codegenie/serverless-express';
import { afterEach, describe, expect, it } from '@jest/globals';
import {
  Controller,
  createParamDecorator,
  type DynamicModule,
  type ExecutionContext,
  Get,
  Global,
  Inject,
  Injectable,
  type INestApplication,
  type INestApplicationContext,
  Module,
  type ModuleMetadata,
  type OnApplicationShutdown,
  Param,
  type PipeTransform,
  Scope,
  type Type,
} from '@nestjs/common';
import { ExternalContextCreator, NestFactory, REQUEST } from '@nestjs/core';
import { MessagePattern } from '@nestjs/microservices';
import { SubscribeMessage, WebSocketGateway } from '@nestjs/websockets';
import { IncomingMessage, type RequestListener, ServerResponse } from 'node:http';
import { Readable } from 'node:stream';
import {
  asCaller,
  Batched,
  InjectServing,
  InvalidServingError,
  RequestSignal,
  type Serving,
  ServingModule,
  ServingService,
} from 'nestjs-serving';
import { ServingBoardModule } from 'nestjs-serving/board';
import { failureOf } from '../../fixtures/async/failure-of.js';
import { HeldFunction } from '../../fixtures/batching/held-function.js';
import { until } from '../../fixtures/async/awaited.js';

const upper = {
  name: 'upper',
  model: { useFactory: () => (texts: string[]) => texts.map((text) => text.toUpperCase()) },
};

@Controller()
class Texts {
  constructor(@InjectServing('upper') private readonly serving: Serving<string, string>) {}

  @Get('batched/:text')
  @Batched()
  batched(@Param('text') texts: string[]): string[] {
    return texts.map((text) => text.toUpperCase());
  }

  @Get('signal/:text')
  signal(@Param('text') text: string, @RequestSignal() signal: AbortSignal): Promise<string> {
    return this.serving.batchedRun(text, { signal });
  }

  @Get('plain/:text')
  plain(@Param('text') text: string): Promise<string> {
    return this.serving.batchedRun(text);
  }
}

const moduleOf = (metadata: ModuleMetadata): Type => {
  @Module(metadata)
  class Part {}
  return Part;
};

const scores = () => ({ servings: [{ name: 'score', model: upper.model }] });

const apps: INestApplicationContext[] = [];
afterEach(() => Promise.all(apps.splice(0).map((app) => app.close())));

async function start(
  metadata: ModuleMetadata,
  ...pipes: PipeTransform[]
): Promise<INestApplication> {
  const options = { logger: false, abortOnError: false } as const;
  const app = await NestFactory.create(moduleOf(metadata), options);
  apps.push(app);
  return app.useGlobalPipes(...pipes).init();
}

describe.each([false, true])('With requestContext: %s', (requestContext) => {
  const texts = {
    imports: [ServingModule.forRoot({ requestContext, servings: [upper] })],
    controllers: [Texts],
  };

  it.each(['batched', 'signal', 'plain'])(
    '[FI1] A request of AWS Lambda, whose socket is a plain object, is answered: %s',
    async (route) => {
      const app = await start(texts);
      const handle: (event: object, context: object) => unknown = configure({
        app: app.getHttpAdapter().getInstance() as RequestListener,
      });
      const event = {
        version: '2.0',
        rawPath: `/${route}/a`,
        rawQueryString: '',
        headers: { host: 'example.com' },
        requestContext: { http: { method: 'GET', path: `/${route}/a` } },
      };

      const reply = await handle(event, {});
      expect(reply).toMatchObject({ statusCode: 200, body: 'A' });
    },
  );

  it.each(['batched', 'signal', 'plain'])(
    '[FI1] A request without a socket, as of Azure Functions, is answered: %s',
    async (route) => {
      const app = await start(texts);
      const request = Object.assign(Readable.from([]), {
        method: 'GET',
        url: `/${route}/a`,
        headers: { host: 'example.com' },
      }) as unknown as IncomingMessage;
      const response = new ServerResponse(request);
      const body = new Promise((resolve) => {
        response.end = (text: unknown) => {
          resolve(text);
          return response;
        };
      });

      (app.getHttpAdapter().getInstance() as RequestListener)(request, response);
      expect(String(await body)).toBe('A');
    },
  );

  it.each(['telegram', undefined])(
    '[FI2] A library runs handlers in a context of the type %s, and gets their own errors',
    async (type) => {
      const Message = createParamDecorator((_, context: ExecutionContext) => context.getArgs()[0]);
      @Injectable()
      class Handlers {
        constructor(@InjectServing('upper') private readonly serving: Serving<string, string>) {}

        @Batched()
        batched(@Message() messages: string[]): string[] {
          return messages.map((message) => message.toUpperCase());
        }

        called(message: string): Promise<string> {
          return this.serving.batchedRun(message);
        }

        refused(message: string): Promise<string> {
          return this.serving.batchedRun(message, { key: 'unknown' });
        }
      }
      const app = await start({
        imports: [ServingModule.forRoot({ requestContext, servings: [upper] })],
        providers: [Handlers],
      });
      const handlers = app.get(Handlers);
      const factory = {
        exchangeKeyForValue: (_: unknown, __: unknown, args: unknown[]) => args[0],
      };
      const handlerOf = (key: keyof Handlers) =>
        app
          .get(ExternalContextCreator)
          .create(
            handlers,
            handlers[key] as (...args: unknown[]) => unknown,
            key,
            '__routeArguments__',
            factory,
            undefined,
            undefined,
            undefined,
            type as 'http',
          );

      expect(await handlerOf('batched')('hi')).toBe('HI');
      expect(await handlerOf('called')('hi')).toBe('HI');
      await expect(handlerOf('refused')('hi')).rejects.toMatchObject({
        code: 'SERVING_UNKNOWN_KEY',
      });
    },
  );
});

@Injectable()
class Users {
  @Batched()
  byId(ids: number[]): string[] {
    return ids.map((id) => `user ${id}`);
  }
}

it.each(['first', 'last'])(
  '[FI3] A @Batched() call while Nest builds the application breaks nothing for later, with forRoot %s',
  async (order) => {
    const early = {
      provide: 'early',
      inject: [Users],
      useFactory: (users: Users) =>
        Promise.resolve()
          .then(() => asCaller(users).byId(1))
          .catch(({ code, message }: { code: string; message: string }) => `${code}: ${message}`),
    };
    const feature = moduleOf({ providers: [Users, early] });
    const root = ServingModule.forRoot();
    const app = await start({ imports: order === 'first' ? [root, feature] : [feature, root] });

    expect([
      'user 1',
      expect.stringMatching(
        /^SERVING_CLOSED: Users\.byId is @Batched\(\) and was called while Nest still builds/,
      ),
    ]).toContainEqual(app.get('early', { strict: false }));
    expect(await asCaller(app.get(Users, { strict: false })).byId(2)).toBe('user 2');
  },
);

describe('[FI4] Messages without a parameter decorator', () => {
  class ScoreDto {}

  it('are refused without types, which pipes would need', async () => {
    @Controller()
    class Scores {
      @MessagePattern('score')
      @Batched()
      score(dtos: ScoreDto[]): ScoreDto[] {
        return dtos;
      }
    }
    @WebSocketGateway()
    class Gateway {
      @SubscribeMessage('score')
      @Batched()
      score(_clients: object[], dtos: ScoreDto[]): ScoreDto[] {
        return dtos;
      }
    }

    for (const Handlers of [Scores, Gateway]) {
      const error = await failureOf(boots(Handlers));
      expect(error).toBeInstanceOf(InvalidServingError);
      expect(String(error)).toContain(
        `The payload of ${Handlers.name}.score, a handler without @Payload() or @MessageBody(), ` +
          'could not be validated by pipes',
      );
    }
  });

  it('are taken with types', async () => {
    @Controller()
    class Scores {
      @MessagePattern('score')
      @Batched({ types: [ScoreDto] })
      score(dtos: ScoreDto[]): ScoreDto[] {
        return dtos;
      }
    }

    await boots(Scores);
  });
});

describe.each<[string, PipeTransform]>([
  ['structuredClone', { transform: (value: unknown) => structuredClone(value) }],
  ['JSON', { transform: (value: unknown) => JSON.parse(JSON.stringify(value)) as unknown }],
  [
    'a copy',
    {
      transform: (value: unknown) =>
        typeof value === 'string' ? value.trim() : Object.assign({}, value),
    },
  ],
])('With a global pipe that copies values by %s', (_, pipe) => {
  const held = new HeldFunction();
  const columns: unknown[] = [];

  @Controller()
  class Echo {
    @Get('echo/:text')
    @Batched()
    echo(@Param('text') texts: string[], further: string[] = ['default']): string[] {
      columns.push(further);
      return texts;
    }

    @Get('held/:text')
    @Batched()
    async held(@Param('text') texts: string[]): Promise<string[]> {
      return (await held.useFactory()(texts)) as string[];
    }
  }

  it('[FI5] a method gets its own parameters only, and a client that leaves ends its call', async () => {
    const app = await start({ imports: [ServingModule.forRoot()], controllers: [Echo] }, pipe);
    await app.listen(0, '127.0.0.1');
    const url = await app.getUrl();

    expect(await (await fetch(`${url}/echo/a`)).text()).toBe('a');
    expect(columns.splice(0)).toEqual([['default']]);

    const first = fetch(`${url}/held/a`);
    await until(() => held.batches.length === 1);
    const controller = new AbortController();
    const second = failureOf(fetch(`${url}/held/b`, { signal: controller.signal }));
    const { counters, queued } = {
      counters: () => app.get(ServingService).counters(),
      queued: () => app.get(ServingService).get('Echo.held').queued,
    };
    await until(() => queued() === 1);
    controller.abort();
    await second;
    await until(() => queued() === 0);
    held.next().finish(['A']);
    expect(await (await first).text()).toBe('A');
    expect(counters().get('Echo.held')).toMatchObject({ answered: 1 });
  });
});

describe('A serving that no provider can be', () => {
  @Injectable({ scope: Scope.REQUEST })
  class Tenant {}
  const Tenants = moduleOf({ providers: [Tenant], exports: [Tenant] });

  @Injectable()
  class Scorer {
    constructor(readonly tenant: Tenant) {}
    init(): void {}
    handleBatch() {
      return { output: [] };
    }
  }
  const score = { name: 'score', model: { useClass: Scorer } };

  it.each<[string, string, readonly DynamicModule[]]>([
    ['its class', 'Tenant', [ServingModule.forRoot({ imports: [Tenants], servings: [score] })]],
    [
      'its class, in a feature',
      'Tenant',
      [
        ServingModule.forRoot(),
        ServingModule.forFeature({ imports: [Tenants], servings: [score] }),
      ],
    ],
    [
      'the factory of forRootAsync',
      'Tenant',
      [
        ServingModule.forRootAsync({
          names: ['score'],
          imports: [Tenants],
          inject: [Tenant],
          useFactory: scores,
        }),
      ],
    ],
    [
      'the factory of forRootAsync, which takes the request',
      'REQUEST',
      [ServingModule.forRootAsync({ names: ['score'], inject: [REQUEST], useFactory: scores })],
    ],
  ])(
    '[FI6] is refused with the name of the request-scoped dependency of %s',
    async (_, name, imports) => {
      const error = await failureOf(start({ imports: [...imports] }));

      expect(error).toBeInstanceOf(InvalidServingError);
      expect(String(error)).toMatch(
        new RegExp(`Serving "score" of \\w+ depends on ${name}, which is request-scoped`),
      );
    },
  );
});

it('[FI7] A class that two modules provide has no handle that could mean either instance, and no warmUp', async () => {
  @Injectable()
  class Rows {
    constructor(@Inject('DATABASE') private readonly database: string) {}

    @Batched()
    byId(ids: number[]): string[] {
      return ids.map((id) => `${this.database} ${id}`);
    }
  }
  @Injectable()
  class Warm extends Rows {
    @Batched({ warmUp: [[0]] })
    warm(ids: number[]): number[] {
      return ids;
    }
  }

  const app = await twice(Rows);
  await expect(app.get(ServingService).batchedRun('Rows.byId', [7])).rejects.toThrow(
    'a @Batched() method of a class with several instances; call it on one of them',
  );
  expect(String(await failureOf(twice(Warm)))).toContain(
    'Warm.warm has warmUp and a class with several instances',
  );
});

it('[FI8] @Batched() as a standard decorator is refused with the options of TypeScript that it needs', () => {
  const decorate = Batched() as unknown as (value: unknown, context: object) => void;

  expect(() => decorate(() => [], { kind: 'method', name: 'score' })).toThrow(
    '@Batched() was used as a standard decorator, on score. Nest needs the decorators of TypeScript: ' +
      'set experimentalDecorators and emitDecoratorMetadata in tsconfig.json',
  );
});

describe('When an application closes', () => {
  class Job implements OnApplicationShutdown {
    work: Promise<unknown> | undefined;
    async onApplicationShutdown(): Promise<void> {
      await this.work;
    }
  }
  const queue = () => moduleOf({ providers: [Job] });
  const servings = [upper];

  it.each<[string, () => ModuleMetadata['imports']]>([
    ['forRoot', () => [queue(), ServingModule.forRoot({ servings })]],
    [
      'forRoot after a global module',
      () => [globalOf(queue()), ServingModule.forRoot({ servings })],
    ],
    [
      'forRoot without isGlobal',
      () => [queue(), ServingModule.forRoot({ servings, isGlobal: false })],
    ],
    [
      'forFeature',
      () => [
        ServingModule.forRoot(),
        moduleOf({ imports: [queue(), ServingModule.forFeature({ servings })] }),
      ],
    ],
  ])('[FR4] jobs in progress may still call the servings of %s', async (_, imports) => {
    const app = await NestFactory.createApplicationContext(
      moduleOf({ imports: imports()!, providers: [Users] }),
      {
        logger: false,
      },
    );
    const service = app.get(ServingService, { strict: false });
    const job = app.get(Job, { strict: false });
    job.work = (async () => {
      const seen: unknown[] = [];
      for (let i = 0; i < 6; i++) {
        seen.push(await service.batchedRun('upper', 'a'), await asCaller(app.get(Users)).byId(i));
        await new Promise((resolve) => setImmediate(resolve));
      }
      return seen;
    })();
    await app.close();

    expect(await job.work).toHaveLength(12);
    await expect(service.batchedRun('upper', 'a')).rejects.toMatchObject({
      code: 'SERVING_CLOSED',
    });
  });

  it('[FU1] before it has begun, a board ends without an error', async () => {
    const errors: unknown[] = [];
    const logger = { log() {}, warn() {}, error: (message: unknown) => void errors.push(message) };
    const imports = [
      ServingModule.forRoot({ servings }),
      ServingBoardModule.forRoot({ guards: [] }),
    ];
    const app = await NestFactory.create(moduleOf({ imports }), { logger });

    await app.close();
    expect(errors).toEqual([]);
  });
});

function globalOf(type: Type): Type {
  Global()(type);
  return type;
}

// Nothing listens, since gateways would need an adapter of WebSocket.
async function boots(Handlers: Type): Promise<void> {
  const metadata = { imports: [ServingModule.forRoot()], providers: [Handlers] };
  const options = { logger: false, abortOnError: false } as const;
  apps.push(await NestFactory.createApplicationContext(moduleOf(metadata), options));
}

function twice(Class: Type): Promise<INestApplication> {
  return start({
    imports: [
      ServingModule.forRoot(),
      ...['red', 'blue'].map((database) =>
        moduleOf({ providers: [{ provide: 'DATABASE', useValue: database }, Class] }),
      ),
    ],
  });
}

import { afterEach, describe, expect, it } from '@jest/globals';
import {
  type CanActivate,
  Controller,
  createParamDecorator,
  type ExecutionContext,
  Get,
  Inject,
  Injectable,
  type INestApplicationContext,
  type ModuleMetadata,
  type MessageEvent,
  Req,
  Sse,
  UseGuards,
} from '@nestjs/common';
import {
  type ClientProxy,
  ClientProxyFactory,
  MessagePattern,
  Transport,
} from '@nestjs/microservices';
import { Test } from '@nestjs/testing';
import {
  Batched,
  type BatchedOptions,
  type BatchEndEvent,
  asCaller,
  currentOrigin,
  type ServingDefinition,
  ServingModule,
  ServingService,
  withOrigin,
} from 'nestjs-serving';
import type { AddressInfo, Server } from 'node:net';
import { bufferCount, firstValueFrom, map, type Observable } from 'rxjs';
import { describeOnPlatforms, type Listen } from '../../fixtures/partitions/platforms.js';

/** Batches of exactly two calls, which only the size closes. */
const pairs: BatchedOptions = { batchSize: 2, batchTimeout: 1_000_000 };
const pairsOfOneOrigin: BatchedOptions = { ...pairs, queue: { separateOrigins: true } };

/** For each row, the origin of the batch and the rows in it. */
const described = (rows: readonly string[]): string[] =>
  rows.map(() => `${currentOrigin()}: ${rows.toSorted().join(' ')}`);

const servings: ServingDefinition[] = [
  {
    name: 'described',
    ...pairsOfOneOrigin,
    model: {
      useFactory:
        () =>
        async (rows: string[], { origin }) => {
          await Promise.resolve();
          return described(rows).map((text) =>
            text.startsWith(`${origin}: `) ? text : `${origin}, but ${text}`,
          );
        },
    },
  },
  {
    name: 'mixed',
    ...pairs,
    model: {
      useFactory:
        () =>
        (rows: string[], { origin }) =>
          rows.map(() => `${origin}: ${rows.length}`),
    },
  },
];

/** The text of the caller: in the path over HTTP, as the message over TCP. */
const Text = createParamDecorator((_: unknown, context: ExecutionContext): unknown =>
  context.getType() === 'rpc'
    ? context.switchToRpc().getData()
    : context.switchToHttp().getRequest<{ params: { text: string } }>().params.text,
);

@Injectable()
class Provider {
  @Batched(pairsOfOneOrigin)
  describe(rows: string[]): string[] {
    return described(rows);
  }
}

/** Calls a serving before the handler runs. */
@Injectable()
class AskingGuard implements CanActivate {
  constructor(@Inject(ServingService) private readonly service: ServingService) {}

  async canActivate(context: ExecutionContext): Promise<boolean> {
    context.switchToHttp().getRequest<{ ofGuard?: unknown }>().ofGuard = await this.service.run(
      'described',
      'guard',
    );
    return true;
  }
}

@Controller()
class Front {
  constructor(@Inject(ServingService) private readonly service: ServingService) {}

  @Get('serving/:text')
  @MessagePattern('serving')
  serving(@Text() text: string): Promise<unknown> {
    return this.service.batchedRun('described', text);
  }

  @Get('named/:text')
  @MessagePattern('named')
  @Batched('described')
  named(@Text() text: string): string {
    return text;
  }

  @Get('method/:text')
  @MessagePattern('method')
  @Batched({ ...pairsOfOneOrigin, types: [String] })
  method(@Text() texts: string[]): string[] {
    return described(texts);
  }

  @Get('mixed/:text')
  @MessagePattern('mixed')
  mixed(@Text() text: string): Promise<unknown> {
    return this.service.batchedRun('mixed', text);
  }

  @Sse('streamed/:text')
  streamed(@Text() text: string): Observable<MessageEvent> {
    return this.service
      .stream<string, string>('described', text)
      .pipe(map(({ output }) => ({ data: output })));
  }

  @Get('guarded')
  @UseGuards(AskingGuard)
  async guarded(@Req() request: { ofGuard: unknown }): Promise<unknown[]> {
    return [request.ofGuard, await this.service.run('described', 'handler')];
  }
}

@Controller()
class ProviderFront {
  constructor(@Inject(Provider) private readonly provider: Provider) {}

  @Get('provider/:text')
  @MessagePattern('provider')
  describe(@Text() text: string): Promise<string> {
    return asCaller(this.provider).describe(text);
  }
}

type Way = 'serving' | 'named' | 'method' | 'provider' | 'mixed';
type Call = (way: Way, text: string) => Promise<unknown>;

/** The kinds of callers of one application. */
interface Callers {
  readonly service: ServingService;
  readonly http: Call;
  readonly stream: (text: string) => Promise<unknown>;
  readonly rpc: Call;
  readonly inProcess: Call;
}

const application: ModuleMetadata = {
  imports: [ServingModule.forRoot({ servings, requestContext: true })],
  controllers: [Front, ProviderFront],
  providers: [Provider],
};
const withoutServings: ModuleMetadata = {
  ...application,
  imports: [ServingModule.forRoot({ requestContext: true })],
  controllers: [ProviderFront],
};

const clients: ClientProxy[] = [];

function overTcp(server: Server): Call {
  const { port } = server.address() as AddressInfo;
  const client = ClientProxyFactory.create({ transport: Transport.TCP, options: { port } });
  clients.push(client);
  return (way, text) => firstValueFrom(client.send(way, text));
}

function inProcess(app: INestApplicationContext): Call {
  const service = app.get(ServingService);
  const calls: Record<Way, (text: string) => Promise<unknown>> = {
    serving: (text) => service.batchedRun('described', text),
    named: async (text) => app.get(Front).named(text),
    method: (text) => asCaller(app.get(Front)).method(text),
    provider: (text) => asCaller(app.get(Provider)).describe(text),
    mixed: (text) => service.batchedRun('mixed', text),
  };
  return (way, text) => calls[way](text);
}

/** An application with HTTP and messages. */
async function startHybrid(
  listen: Listen,
  inheritAppConfig: boolean,
  metadata = application,
): Promise<Callers> {
  let server!: Server;
  const site = await listen(metadata, {
    configure: async (app) => {
      const options = { transport: Transport.TCP as const, options: { port: 0 } };
      const microservice = app.connectMicroservice(options, { inheritAppConfig });
      await app.startAllMicroservices();
      server = microservice.unwrap<Server>();
    },
  });
  return {
    service: site.app.get(ServingService),
    http: async (way, text) => (await site.get(`/${way}/${text}`)).body,
    stream: async (text) => (await site.get(`/streamed/${text}`)).body,
    rpc: overTcp(server),
    inProcess: inProcess(site.app),
  };
}

/**
 * Two calls of each kind, the second ones when all first ones wait, so that rows would share a
 * batch if they could.
 */
async function twice(
  way: Way,
  service: ServingService,
  calls: Record<string, Call>,
): Promise<Record<string, unknown[]>> {
  const entries = Object.entries(calls);
  const allWait = firstValueFrom(service.eventsOf('call:start').pipe(bufferCount(entries.length)));
  const first = entries.map(([kind, call]) => call(way, `${kind}-1`));
  await allWait;
  const replies = entries.map(
    async ([kind, call], i) =>
      [kind, await Promise.all([first[i], call(way, `${kind}-2`)])] as const,
  );
  return Object.fromEntries(await Promise.all(replies));
}

const pairOf = (origin: string, kind = origin): string[] =>
  [0, 1].map(() => `${origin}: ${kind}-1 ${kind}-2`);

describeOnPlatforms('Origins', (listen) => {
  afterEach(() => Promise.all(clients.splice(0).map((client) => client.close())));

  it.each<[string, Way]>([
    ['a serving', 'serving'],
    ['a serving, by a method with its name', 'named'],
    ['a batched method of a controller', 'method'],
    ['a batched method of a provider', 'provider'],
  ])(
    '[4.10] Calls of different origins never share a batch, and the batch has its origin: %s',
    async (_, way) => {
      const { service, http, rpc, inProcess: inside } = await startHybrid(listen, true);
      const events: BatchEndEvent[] = [];
      service.eventsOf('batch:end').subscribe((event) => events.push(event));

      const replies = await twice(way, service, { http, rpc, 'in-process': inside });

      expect(replies).toEqual({
        http: pairOf('http'),
        rpc: pairOf('rpc'),
        'in-process': pairOf('in-process'),
      });
      expect(new Set(events.map(({ origin }) => origin))).toEqual(
        new Set(['http', 'in-process', 'rpc']),
      );
      expect(events).toHaveLength(3);
    },
  );

  it("[4.10] Calls of different origins never share a batch of a provider's method, also without servings that separate them", async () => {
    const {
      service,
      http,
      rpc,
      inProcess: inside,
    } = await startHybrid(listen, true, withoutServings);

    const replies = await twice('provider', service, { http, rpc, 'in-process': inside });

    expect(replies).toEqual({
      http: pairOf('http'),
      rpc: pairOf('rpc'),
      'in-process': pairOf('in-process'),
    });
  });

  it('[4.10] Calls of different origins share a batch that has no origin when the serving does not separate them', async () => {
    const { http, rpc } = await startHybrid(listen, true);

    expect(await Promise.all([http('mixed', 'a'), rpc('mixed', 'b')])).toEqual([
      'undefined: 2',
      'undefined: 2',
    ]);
  });

  it('[4.10] Methods recognise messages in a hybrid application whose microservice does not inherit its configuration', async () => {
    const { service, http, rpc } = await startHybrid(listen, false);

    expect(await twice('method', service, { http, rpc })).toEqual({
      http: pairOf('http'),
      rpc: pairOf('rpc'),
    });
  });

  it('[4.10] Servings treat messages there as in-process, apart from HTTP, since Nest runs no interceptors for them', async () => {
    const { service, http, rpc } = await startHybrid(listen, false);

    expect(await twice('serving', service, { http, rpc })).toEqual({
      http: pairOf('http'),
      rpc: pairOf('in-process', 'rpc'),
    });
  });

  it('[4.10] The origin is known from the first interceptor on, and calls in guards count as in-process', async () => {
    const site = await listen({ ...application, controllers: [Front], providers: [] });

    expect((await site.get('/guarded')).body).toEqual(['in-process: guard', 'http: handler']);
  });

  it('[4.10] [8.2] A stream has the origin of its request, although Nest reads it outside of that', async () => {
    const { service, stream } = await startHybrid(listen, true);

    expect(await Promise.all([stream('a'), stream('b')])).toEqual([
      expect.stringContaining('data: http: a b'),
      expect.stringContaining('data: http: a b'),
    ]);
    const cold = withOrigin('ws', () => service.stream('described', 'c'));
    const reply = service.batchedRun('described', 'd', { origin: 'ws' });
    expect(await firstValueFrom(cold.pipe(map(({ output }) => output)))).toBe('ws: c d');
    expect(await reply).toBe('ws: c d');
  });

  it('[4.10] A caller can name the origin as an option of the call and around it', async () => {
    const { service, http } = await startHybrid(listen, true);
    const asIfHttp: Call = (_, text) => service.batchedRun('described', text, { origin: 'http' });
    const asIfSocket: Call = (_, text) =>
      withOrigin('ws', () => service.batchedRun('described', text));

    const replies = await Promise.all([
      http('serving', 'a'),
      asIfHttp('serving', 'b'),
      asIfSocket('serving', 'c'),
      service.batchedRun('described', 'd', { origin: 'ws' }),
    ]);

    expect(replies).toEqual(['http: a b', 'http: a b', 'ws: c d', 'ws: c d']);
  });
});

describe('Origins in a process', () => {
  it.each<Way>(['serving', 'method', 'provider'])(
    '[4.10] A batch has the origin of its calls and not that of the caller that triggers it: %s',
    async (way) => {
      const app = await Test.createTestingModule(application).compile();
      await app.init();
      const call = inProcess(app);

      const replies = await Promise.all(
        ['ws', 'rpc', 'ws', 'rpc'].map((origin, i) =>
          withOrigin(origin, () => call(way, `${origin}-${i}`)),
        ),
      );

      expect(replies).toEqual([
        'ws: ws-0 ws-2',
        'rpc: rpc-1 rpc-3',
        'ws: ws-0 ws-2',
        'rpc: rpc-1 rpc-3',
      ]);
      await app.close();
    },
  );
});

describe('Origins in a microservice', () => {
  const closing: (() => Promise<unknown>)[] = [];

  afterEach(async () => {
    await Promise.all(clients.splice(0).map((client) => client.close()));
    await Promise.all(closing.splice(0).map((close) => close()));
  });

  it.each<Way>(['serving', 'named', 'method', 'provider'])(
    '[4.10] Messages and in-process calls never share a batch: %s',
    async (way) => {
      const testing = await Test.createTestingModule(application).compile();
      const app = testing.createNestMicroservice({
        transport: Transport.TCP,
        options: { port: 0 },
        logger: false,
      });
      closing.push(() => app.close());
      await app.listen();
      const service = app.get(ServingService);
      const calls = { rpc: overTcp(app.unwrap<Server>()), 'in-process': inProcess(app) };

      expect(await twice(way, service, calls)).toEqual({
        rpc: pairOf('rpc'),
        'in-process': pairOf('in-process'),
      });
    },
  );
});

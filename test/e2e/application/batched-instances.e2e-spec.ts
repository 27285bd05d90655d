import { expect, it } from '@jest/globals';
import {
  type CallHandler,
  Controller,
  type ExecutionContext,
  Get,
  Inject,
  Injectable,
  type NestInterceptor,
  Param,
  type Provider,
  Scope,
  UseInterceptors,
} from '@nestjs/common';
import { ContextIdFactory, REQUEST } from '@nestjs/core';
import { Batched, asCaller, ServingClosedError, ServingModule } from 'nestjs-serving';
import { map, type Observable } from 'rxjs';
import { bodies, describeOnPlatforms } from '../../fixtures/partitions/platforms.js';
import {
  batchesOf,
  type Incoming,
  times,
  withServing,
} from '../../fixtures/serving/batched-methods.js';

describeOnPlatforms('@Batched()', (listen) => {
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
        ServingModule.forRoot({
          servings: [{ name: 'echo', model: { useFactory }, ...batchesOf(3) }],
        }),
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
});

import type { AddressInfo, Server } from 'node:net';
import { firstValueFrom } from 'rxjs';
import { describe, expect, it } from '@jest/globals';
import {
  Controller,
  Get,
  Inject,
  Injectable,
  type ModuleMetadata,
  Param,
  type PipeTransform,
} from '@nestjs/common';
import { ClientProxyFactory, MessagePattern, Payload, Transport } from '@nestjs/microservices';
import { Test } from '@nestjs/testing';
import { Batched, RequestSignal, ServingModule, ServingService } from 'nestjs-serving';
import {
  describeOnPlatforms,
  type Listen,
  type Site,
} from '../../fixtures/partitions/platforms.js';
import { until } from '../../fixtures/async/streams.js';
import {
  connect,
  connectionsOf,
  endsOf,
  held,
  hold,
  servings,
  useHeldCalls,
} from '../../fixtures/serving/held-calls.js';

let signals: AbortSignal[] = [];
let seen: unknown[] = [];

/** A global pipe, which gets each parameter of a handler. */
@Injectable()
class SeeingPipe implements PipeTransform {
  transform(value: unknown): unknown {
    seen.push(value);
    return value;
  }
}

@Controller()
class Front {
  constructor(@Inject(ServingService) private readonly service: ServingService) {}

  @Get('service/:text')
  viaService(@Param('text') text: string, @RequestSignal() signal: AbortSignal): Promise<unknown> {
    signals.push(signal);
    return this.service.batchedRun('held', text, { signal });
  }

  @Get('two/:text')
  two(
    @RequestSignal() first: AbortSignal,
    @Param('text') text: string,
    @RequestSignal() second: AbortSignal,
  ): string {
    signals.push(first, second);
    return text;
  }

  @Get('unsignalled/:text')
  unsignalled(@Param('text') text: string): Promise<unknown> {
    return this.service.batchedRun('held', text);
  }

  @Get('named/:text')
  @Batched('held')
  viaName(@Param('text') text: string): string {
    return text;
  }

  @Get('method/:text')
  @Batched({ batchSize: 2, types: [String] })
  viaMethod(@Param('text') texts: string[]): Promise<string[]> {
    return hold(texts);
  }
}

const metadata: ModuleMetadata = {
  imports: [ServingModule.forRoot({ servings })],
  controllers: [Front],
};

async function start(listen: Listen): Promise<Site & ReturnType<typeof endsOf>> {
  [signals, seen] = [[], []];
  const site = await listen(metadata, {
    configure: (app) => app.useGlobalPipes(new SeeingPipe()),
  });
  return Object.assign(site, endsOf(site));
}

describeOnPlatforms('Signals of requests', (listen) => {
  describe('without a context of requests', () => {
    useHeldCalls();

    it.each([
      ['[R3]', 'service'],
      ['[R2]', 'named'],
      ['[R2]', 'method'],
    ])('%s A queued call ends with its client: %s', async (_, route) => {
      const site = await start(listen);
      const [staying, leaving] = [await connect(site), await connect(site)];
      staying.get(`/${route}/a`);
      await until(() => held.batches.length === 1);
      leaving.get(`/${route}/b`);
      await until(() => site.waiting() === 1);

      leaving.leave();
      await until(() => site.ends.length === 1);
      held.next().finish(['A']);

      expect(await staying.answers(1)).toEqual([{ status: 200, body: 'A' }]);
      expect(site.ends).toMatchObject([
        { error: { code: 'SERVING_CANCELLED' }, cancelled: true, stage: 'waiting' },
        { rows: 1 },
      ]);
      expect(held.batches).toHaveLength(0);
    });

    it('[R1] A call without the signal outlives its client', async () => {
      const site = await start(listen);
      const client = await connect(site);
      client.get('/unsignalled/a');
      await until(() => held.batches.length === 1);
      const connections = connectionsOf(site);

      client.leave();
      await site.get('/two/x');
      held.next().finish(['A']);
      await until(() => site.ends.length === 1);

      expect(connections).toHaveLength(1);
      expect(site.ends[0]).not.toHaveProperty('error');
    });

    it.each(['named', 'method', 'service'])(
      '[R2] [R3] Requests add one listener to their kept-alive connection: %s',
      async (route) => {
        const site = await start(listen);
        const [connections, client] = [connectionsOf(site), await connect(site)];
        await until(() => connections.length === 1);
        const before = connections[0]!.listenerCount('close');

        for (const [index, text] of ['a', 'b', 'c'].entries()) {
          client.get(`/${route}/${text}`);
          await until(() => held.batches.length === 1);
          held.next().finish([text]);
          await client.answers(index + 1);
        }

        expect(connections[0]!.listenerCount('close')).toBe(before + 1);
        expect(signals.every(({ aborted }) => !aborted)).toBe(true);
      },
    );

    it('[R3] Each parameter of a handler is an AbortSignal', async () => {
      const site = await start(listen);

      await site.get('/two/x');

      expect(signals).toEqual([expect.any(AbortSignal), expect.any(AbortSignal)]);
    });

    it('[R2] A batched handler gets its declared parameters, and pipes find nothing of the request', async () => {
      const site = await start(listen);
      const reply = site.get('/method/a');
      await until(() => held.batches.length === 1);
      held.next().finish(['A']);

      expect((await reply).body).toBe('A');
      expect(seen[0]).toBe('a');
      expect(seen.slice(1).map((value) => Object.keys(value as object))).toEqual([
        ['servingCaller', 'origin'],
      ]);
    });
  });
});

@Controller()
class Messages {
  @MessagePattern('signal')
  signal(@Payload() text: string, @RequestSignal() signal: AbortSignal): string {
    return `${text}: ${signal instanceof AbortSignal && !signal.aborted}`;
  }
}

describe('Signals of messages', () => {
  it('[R3] A handler of messages gets a signal, which never aborts', async () => {
    const testing = await Test.createTestingModule({ controllers: [Messages] }).compile();
    const app = testing.createNestMicroservice({ transport: Transport.TCP, options: { port: 0 } });
    await app.listen();
    const { port } = app.unwrap<Server>().address() as AddressInfo;
    const client = ClientProxyFactory.create({ transport: Transport.TCP, options: { port } });

    expect(await firstValueFrom(client.send('signal', 'usable'))).toBe('usable: true');

    await client.close();
    await app.close();
  });
});

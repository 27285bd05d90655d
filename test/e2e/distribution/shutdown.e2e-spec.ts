import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { Controller, Get, Module, type Type } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { ClientTCP, Transport } from '@nestjs/microservices';
import { ServingClosedError, ServingModule, ServingService } from 'nestjs-serving';
import type { FunctionServingDefinition } from '../../../lib/core/definition/serving-definition.js';
import { ServingClusterModule } from 'nestjs-serving/distribution';
import { VirtualTime } from 'nestjs-serving/testing';
import { firstValueFrom } from 'rxjs';
import { MemoryNetwork } from '../../../lib/extensions/distribution/memory-network.js';
import { until } from '../../fixtures/async/awaited.js';
import { freePort } from '../../fixtures/http/free-port.js';
import { failureOf } from '../../fixtures/async/failure-of.js';
import { iterated } from '../../fixtures/async/streams.js';
import { type ClusterApp, useCluster } from '../../fixtures/cluster/use-cluster.js';
import { outcomeOf } from '../../fixtures/async/outcome-of.js';

/** Milliseconds in which a shutdown ends that no option makes shorter. */
const DEFAULT_LIMIT = 30_000;

const never = (): Promise<never> => new Promise(() => {});
const closed = expect.objectContaining({ code: 'SERVING_CLOSED' });

/** Batches that never end; `begun` counts them. */
class Hung {
  begun = 0;
  readonly definition: FunctionServingDefinition;

  constructor(options: Partial<FunctionServingDefinition> = {}) {
    const useFactory = () => () => {
      this.begun++;
      return never();
    };
    this.definition = {
      name: 'hung',
      batchSize: 1,
      shutdown: { timeout: 300 },
      ...options,
      model: { useFactory },
    };
  }
}

describe('A node that shuts down', () => {
  const cluster = useCluster();
  let time: VirtualTime;

  beforeEach(async () => {
    time = await VirtualTime.install();
  });

  afterEach(() => time.restore());

  /** A node with the serving and another one that has found it. */
  async function pair(
    definition: FunctionServingDefinition,
    options: object = {},
  ): Promise<[ClusterApp, ClusterApp]> {
    const owner = await cluster.node({
      servings: [definition],
      drainTimeout: undefined,
      ...options,
    });
    const web = await cluster.node();
    const known = web.untilNodes(definition.name);
    await time.advance(100);
    await known;
    return [owner, web];
  }

  it.each([true, false])(
    '[H3] A node that closes runs the open windows of remote rows at once, drain: %s',
    async (drain) => {
      const echo = {
        name: 'echo',
        batchSize: 8,
        batchTimeout: 10_000,
        shutdown: { timeout: 5000, drain },
      };
      const [owner, web] = await pair({
        ...echo,
        model: { useFactory: () => (rows: readonly unknown[]) => rows },
      });
      const call = outcomeOf(web.servings.batchedRun('echo', 'x'));
      await time.advance(50);
      expect(call).toEqual({});

      const closing = owner.close();
      await time.advance(0);
      await closing;

      expect(call.outcome).toEqual(drain ? 'x' : closed);
    },
  );

  it('[H3] At the limit of its servings a node answers all remote calls with the closed error, streams too', async () => {
    const hung = new Hung();
    const [owner, web] = await pair(hung.definition);
    const calls = [
      web.servings.batchedRun('hung', 'running'),
      web.servings.batchedRun('hung', 'queued'),
      web.servings.run('hung', 'inline'),
      iterated(web.servings.stream('hung', 'streamed')),
      iterated(
        web.servings.stream(
          'hung',
          (async function* () {
            yield ['lazy'];
            await never();
          })(),
        ),
      ),
    ].map(outcomeOf);
    await until(() => hung.begun === 1 && owner.servings.get('hung').queued === 4);

    const shutdown = outcomeOf(owner.close().then(() => 'done'));
    await time.advance(290);
    expect(shutdown).toEqual({});
    await time.advance(20);

    expect(calls.map(({ outcome }) => outcome)).toEqual(calls.map(() => closed));
    await time.advance(1000);
    expect(shutdown).toEqual({ outcome: 'done' });
  });

  it.each([
    ['the longest shutdown of its servings', {}, 700],
    ['drainTimeout when that is less', { drainTimeout: 500 }, 500],
    ['the longest shutdown when drainTimeout is more', { drainTimeout: 60_000 }, 700],
  ])('[H3] The shutdown limit of a node is %s', async (_, options, limit) => {
    const hung = new Hung({ shutdown: { timeout: 700 } });
    const quick = {
      name: 'quick',
      shutdown: { timeout: 100 },
      model: { useFactory: () => (rows: readonly unknown[]) => rows },
    };
    const [owner, web] = await pair(hung.definition, {
      servings: [hung.definition, quick],
      ...options,
    });
    const call = outcomeOf(web.servings.batchedRun('hung', 1));
    await until(() => hung.begun > 0);

    const shutdown = outcomeOf(owner.close().then(() => 'done'));
    await time.advance(limit - 10);
    expect(call).toEqual({});
    await time.advance(20);
    expect(call.outcome).toEqual(closed);
    await time.advance(1200);
    expect(shutdown).toEqual({ outcome: 'done' });
  });

  it('[H3] At the limit a node answers its own remote calls with the closed error, in every stage', async () => {
    const hung = new Hung({ shutdown: { timeout: 5000 } });
    const owner = await cluster.node({ servings: [hung.definition] });
    const local = {
      name: 'local',
      shutdown: { timeout: 300 },
      model: { useFactory: () => (rows: readonly unknown[]) => rows },
    };
    const web = await cluster.node({
      servings: [local],
      drainTimeout: undefined,
      discoveryTimeout: 60_000,
      remotes: [{ name: 'prepared', preprocess: never }],
    });
    await time.advance(100);
    const calls = [
      web.servings.batchedRun('hung', 1),
      iterated(web.servings.stream('hung', 2)),
      web.servings.batchedRun('not there', 3),
      iterated(web.servings.stream('not there', 4)),
      web.servings.batchedRun('prepared', 5),
    ].map(outcomeOf);
    await until(() => hung.begun > 0);

    const shutdown = outcomeOf(web.close().then(() => 'done'));
    await time.advance(290);
    expect(calls.map(({ outcome }) => outcome)).toEqual(calls.map(() => undefined));
    await time.advance(20);

    expect(calls.map(({ outcome }) => outcome)).toEqual(calls.map(() => closed));
    await time.advance(1000);
    expect(shutdown).toEqual({ outcome: 'done' });
    expect(await failureOf(web.servings.batchedRun('hung', 1))).toBeInstanceOf(ServingClosedError);
    void owner.close();
    await time.advance(6000);
  });

  it('[H3] A node that closes runs the windows of servings of other modules too', async () => {
    const network = new MemoryNetwork();
    const patient = { batchSize: 8, batchTimeout: 10_000, shutdown: { timeout: 5000 } };
    const echo = {
      name: 'echo',
      ...patient,
      model: { useFactory: () => (rows: readonly unknown[]) => rows },
    };
    const feature: Type = class Feature {};
    Module({ imports: [ServingModule.forFeature({ servings: [echo] })] })(feature);
    const root: Type = class Root {};
    const node = ServingClusterModule.forRoot({ transport: network.transport() });
    Module({ imports: [feature, ServingModule.forRoot(), node] })(root);
    const owner = await NestFactory.createApplicationContext(root, {
      logger: false,
      abortOnError: false,
    });
    const caller = await NestFactory.createApplicationContext(
      {
        module: class {},
        imports: [
          ServingModule.forRoot(),
          ServingClusterModule.forRoot({ transport: network.transport() }),
        ],
      },
      { logger: false, abortOnError: false },
    );
    await time.advance(100);
    const call = outcomeOf(caller.get(ServingService).batchedRun('echo', 'x'));
    await time.advance(50);

    const closing = owner.close();
    await time.advance(0);
    await closing;

    expect(call.outcome).toBe('x');
    await caller.close();
  });
});

describe('An application that shuts down', () => {
  const servers: { close(): Promise<void> }[] = [];

  afterEach(async () => {
    await Promise.all(servers.splice(0).map((server) => server.close()));
  });

  it('[H3] An application answers over HTTP at its limit when the node that it calls does not', async () => {
    const network = new MemoryNetwork();
    const hung = new Hung({ shutdown: { timeout: 1000 } });
    const owner = await NestFactory.createApplicationContext(
      {
        module: class {},
        imports: [
          ServingModule.forRoot({ servings: [hung.definition] }),
          ServingClusterModule.forRoot({ transport: network.transport() }),
        ],
      },
      { logger: false, abortOnError: false },
    );
    @Controller()
    class Front {
      constructor(private readonly servings: ServingService) {}

      @Get()
      call(): Promise<unknown> {
        return this.servings.batchedRun('hung', 1);
      }
    }
    @Module({
      imports: [
        ServingModule.forRoot(),
        ServingClusterModule.forRoot({ transport: network.transport(), drainTimeout: 300 }),
      ],
      controllers: [Front],
    })
    class FrontModule {}
    const front = await NestFactory.create(FrontModule, { logger: false, abortOnError: false });
    await front.listen(0, '127.0.0.1');
    const answer = fetch(await front.getUrl(), { headers: { connection: 'close' } });
    await until(() => hung.begun > 0);

    const began = performance.now();
    await front.close();

    expect((await answer).status).toBe(503);
    expect(performance.now() - began).toBeLessThan(DEFAULT_LIMIT);
    await owner.close();
  });

  it('[H3] A client of Nest over TCP gets the closed error at the limit', async () => {
    const hung = new Hung();
    const port = await freePort();
    const owner = await NestFactory.createApplicationContext(
      {
        module: class {},
        imports: [
          ServingModule.forRoot({ servings: [hung.definition] }),
          ServingClusterModule.forRoot({ transport: Transport.TCP, options: { port } }),
        ],
      },
      { logger: false, abortOnError: false },
    );
    const client = new ClientTCP({ host: '127.0.0.1', port });
    servers.push({ close: async () => client.close() });
    const call = failureOf(firstValueFrom(client.send('sv.default.s.hung', { input: 1 })));
    await until(() => hung.begun > 0);

    const began = performance.now();
    await owner.close();

    expect(await call).toEqual(closed);
    expect(performance.now() - began).toBeLessThan(DEFAULT_LIMIT);
  });
});

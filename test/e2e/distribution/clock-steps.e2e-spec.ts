import { afterEach, beforeEach, expect, it } from '@jest/globals';
import { type INestApplicationContext, Logger } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { ServingModule, ServingService } from 'nestjs-serving';
import { ServingCluster, ServingClusterModule } from 'nestjs-serving/distribution';
import { until } from '../../fixtures/async/awaited.js';
import { freePort } from '../../fixtures/http/free-port.js';
import { recordWarnings } from '../../fixtures/recorded-warnings.js';
import { describeEach, grpc, tcp } from '../../fixtures/cluster/wirings.js';

const secret = 'a secret of all nodes';

describeEach('A node with a secret whose clock steps', [tcp(), grpc()], (wiring) => {
  const apps: INestApplicationContext[] = [];
  const now = Date.now;

  beforeEach(() => Logger.overrideLogger(false));

  afterEach(async () => {
    Date.now = now;
    await Promise.all(apps.splice(0).map((app) => app.close()));
  });

  const node = async (
    nodeId: string,
    peers: readonly number[],
    port?: number,
  ): Promise<INestApplicationContext> => {
    const servings =
      port === undefined
        ? []
        : [{ name: 'm', model: { useFactory: () => (rows: unknown[]) => rows.map(() => nodeId) } }];
    const root = {
      module: class {},
      imports: [
        ServingModule.forRoot({ servings }),
        ServingClusterModule.forRoot({
          ...wiring.options(peers, port),
          nodeId,
          secret,
          heartbeat: 100,
          remotes: port === undefined ? ['m'] : [],
        }),
      ],
    };
    const app = await NestFactory.createApplicationContext(root, {
      logger: false,
      abortOnError: false,
    });
    apps.push(app);
    return app;
  };

  it('[FV3] gets no calls, since only valid packets are signs of life, and the log names the limit', async () => {
    const warnings = recordWarnings();
    const [one, two] = [await freePort(), await freePort()];
    let step = 0;
    // The node takes this clock when it starts.
    Date.now = () => now() + step;
    await node('stepping', [], one);
    const stepping = apps[0]!.get(ServingCluster);
    await until(() => stepping.nodes().length === 1);
    Date.now = now;
    await node('well', [], two);
    const web = await node('web', [one, two]);
    const takers = () =>
      web
        .get(ServingCluster)
        .selector.candidates('m')
        .map(({ id }) => id)
        .toSorted();
    await until(() => takers().length === 2);

    step = -120_000;
    await until(() => takers().length === 1);

    expect(takers()).toEqual(['well']);
    const replies = Array.from({ length: 20 }, () => web.get(ServingService).batchedRun('m', 1));
    expect(new Set(await Promise.all(replies))).toEqual(new Set(['well']));
    expect(warnings.join('\n')).toContain('agree within 60000 ms');
  });
});

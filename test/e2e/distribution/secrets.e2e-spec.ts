import { afterEach, beforeEach, expect, it } from '@jest/globals';
import { type INestApplicationContext, Logger } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { ServingModule, ServingService } from 'nestjs-serving';
import { ServingCluster, ServingClusterModule } from 'nestjs-serving/distribution';
import type { DistributionOptions } from '../../../lib/extensions/distribution/options.js';
import { until } from '../../fixtures/async/awaited.js';
import { freePort } from '../../fixtures/http/free-port.js';
import { describeWirings } from '../../fixtures/cluster/wirings.js';

const [before, after] = ['the secret before', 'the secret after it'];

describeWirings('A secret that is replaced while nodes run', (wiring) => {
  const apps: INestApplicationContext[] = [];

  beforeEach(() => Logger.overrideLogger(false));
  afterEach(() => Promise.all(apps.splice(0).map((app) => app.close())));

  const start = async (
    distribution: DistributionOptions,
    isNode: boolean,
  ): Promise<INestApplicationContext> => {
    const echo = { name: 'm', model: { useFactory: () => (rows: unknown[]) => rows } };
    const root = {
      module: class {},
      imports: [
        ServingModule.forRoot({ servings: isNode ? [echo] : [] }),
        ServingClusterModule.forRoot(distribution),
      ],
    };
    const options = { logger: false, abortOnError: false } as const;
    const app = await NestFactory.createApplicationContext(root, options);
    apps.push(app);
    return app;
  };

  it.each([
    [before, [before, after]],
    [
      [before, after],
      [after, before],
    ],
    [[after, before], after],
  ])('[FV8] Nodes of two steps in a row call each other: %j and %j', async (one, other) => {
    for (const [secret, callers] of [
      [one, other],
      [other, one],
    ] as const) {
      const port = await freePort();
      const namespace = `${port}`;
      await start({ ...wiring.options([], port), namespace, secret }, true);
      const web = await start(
        { ...wiring.options([port]), namespace, secret: callers, remotes: ['m'], role: 'client' },
        false,
      );
      await until(() => web.get(ServingCluster).nodes().length === 2);
      await expect(web.get(ServingService).batchedRun('m', 7)).resolves.toBe(7);
    }
  });
});

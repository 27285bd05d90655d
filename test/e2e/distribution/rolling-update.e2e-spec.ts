import dns from 'node:dns/promises';
import { afterEach, beforeEach, expect, it, jest } from '@jest/globals';
import { type INestApplicationContext, Logger } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { Transport } from '@nestjs/microservices';
import { type ServingDefinition, ServingModule, ServingService } from 'nestjs-serving';
import { ServingCluster, ServingClusterModule } from 'nestjs-serving/distribution';
import type { DistributionOptions } from '../../../lib/extensions/distribution/options.js';
import { until } from '../../fixtures/async/awaited.js';
import { freePort } from '../../fixtures/http/free-port.js';
import { describeWirings, type Wiring } from '../../fixtures/cluster/wirings.js';

const SERVICE = 'models.test';

/** The options of a pod with this address behind the service. */
function behindService({ name, options }: Wiring, port: number, host: string): DistributionOptions {
  const peers = [{ dns: SERVICE, port }];
  switch (name) {
    case 'TCP':
      return { transport: Transport.TCP, options: { host, port }, peers };
    case 'gRPC':
      return { transport: Transport.GRPC, options: { url: `${host}:${port}` }, peers };
    default:
      return options([]);
  }
}

const answering = (mark: string): ServingDefinition => ({
  name: 'm',
  model: { useFactory: () => (rows: unknown[]) => rows.map(() => mark) },
});

describeWirings('A rolling update', (wiring) => {
  const apps: INestApplicationContext[] = [];
  let addresses: readonly string[];

  beforeEach(() => {
    Logger.overrideLogger(false);
    const { lookup } = dns;
    const fake = async (name: string, options: object): Promise<unknown> =>
      name === SERVICE
        ? addresses.map((address) => ({ address, family: 4 }))
        : lookup(name, options);
    jest.spyOn(dns, 'lookup').mockImplementation(fake as typeof dns.lookup);
  });

  afterEach(async () => {
    await Promise.all(apps.splice(0).map((app) => app.close()));
    jest.restoreAllMocks();
  });

  const pod = async (
    distribution: DistributionOptions,
    servings: readonly ServingDefinition[] = [],
  ): Promise<INestApplicationContext> => {
    const root = {
      module: class {},
      imports: [ServingModule.forRoot({ servings }), ServingClusterModule.forRoot(distribution)],
    };
    const app = await NestFactory.createApplicationContext(root, { logger: false });
    apps.push(app);
    return app;
  };
  it('[FV5] No call fails while a pod behind a headless Service is replaced, with the default options', async () => {
    const port = await freePort();
    addresses = ['127.0.0.1'];
    const old = await pod(behindService(wiring, port, '127.0.0.1'), [answering('old')]);
    const web = await pod({
      ...behindService(wiring, port, '127.0.0.3'),
      role: 'client',
      remotes: ['m'],
    });
    const service = web.get(ServingService);
    await until(() => web.get(ServingCluster).nodes().length === 2);
    const answers: unknown[] = [];
    const failures: unknown[] = [];
    const load = new AbortController();
    const callers = Array.from({ length: 4 }, async () => {
      while (!load.signal.aborted) {
        await service.batchedRun('m', 1).then(
          (answer) => answers.push(answer),
          (error: unknown) => failures.push(error),
        );
        await new Promise(setImmediate);
      }
    });
    await until(() => answers.length > 100);

    await pod(behindService(wiring, port, '127.0.0.2'), [answering('new')]);
    addresses = ['127.0.0.1', '127.0.0.2'];
    const closed = old.close();
    addresses = ['127.0.0.2'];
    await closed;
    const before = answers.length;
    await until(() => answers.length > before + 100 || failures.length > 0);
    load.abort();
    await Promise.all(callers);

    expect(failures).toEqual([]);
    expect(answers.at(-1)).toBe('new');
  });
});

import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import {
  type DynamicModule,
  Injectable,
  Logger,
  Module,
  type OnModuleInit,
  type Type,
} from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { InjectServing, Serving, ServingModule, ServingService } from 'nestjs-serving';
import { ServingCluster, ServingClusterModule, MemoryNetwork } from 'nestjs-serving/distribution';

const echo = { name: 'echo', model: { useFactory: () => (rows: readonly unknown[]) => rows } };

@Injectable()
class Caller implements OnModuleInit {
  reply: Promise<unknown> | undefined;

  constructor(@InjectServing('echo') private readonly serving: Serving<string, string>) {
    this.reply = serving.batchedRun('at once');
  }

  async onModuleInit(): Promise<void> {
    this.reply = Promise.all([this.reply, this.serving.batchedRun('at start')]);
    await this.reply;
  }
}

describe('A serving of "remotes" of ServingClusterModule', () => {
  const apps: { close(): Promise<void> }[] = [];
  let network: MemoryNetwork;

  beforeEach(() => {
    Logger.overrideLogger(false);
    network = new MemoryNetwork();
  });

  afterEach(() => Promise.all(apps.splice(0).map((app) => app.close())));

  async function start(imports: DynamicModule[], providers: Type[] = [Caller]) {
    @Module({ imports, providers })
    class App {}
    const app = await NestFactory.createApplicationContext(App, {
      logger: false,
      abortOnError: false,
    });
    apps.push(app);
    return app;
  }

  const owner = () =>
    start(
      [
        ServingModule.forRoot({ servings: [echo] }),
        ServingClusterModule.forRoot({ transport: network.transport() }),
      ],
      [],
    );

  it.each<[string, () => DynamicModule]>([
    [
      'forRoot',
      () => ServingClusterModule.forRoot({ transport: network.transport(), remotes: ['echo'] }),
    ],
    [
      'forRootAsync',
      () =>
        ServingClusterModule.forRootAsync({
          names: ['echo'],
          useFactory: () => ({ transport: network.transport(), remotes: ['echo'] }),
        }),
    ],
  ])(
    '[11] is injected and answers calls while the application starts, with %s',
    async (_, cluster) => {
      await owner();

      const web = await start([ServingModule.forRoot(), cluster()]);

      expect(await web.get(Caller).reply).toEqual(['at once', 'at start']);
    },
  );

  it('[11] is injected where neither module is global, whichever is imported first', async () => {
    await owner();
    const cluster = { transport: network.transport(), remotes: ['echo'], isGlobal: false };

    const web = await start([
      ServingClusterModule.forRoot(cluster),
      ServingModule.forRoot({ isGlobal: false }),
    ]);

    expect(await web.get(Caller).reply).toEqual(['at once', 'at start']);
    expect(await web.get(ServingService).batchedRun('echo', 'by name')).toBe('by name');
    expect(web.get(ServingCluster).nodes()).toHaveLength(2);
  });
});

import { expect, it } from '@jest/globals';
import {
  type BeforeApplicationShutdown,
  Controller,
  Get,
  Inject,
  Injectable,
  Module,
  type ModuleMetadata,
  ServiceUnavailableException,
} from '@nestjs/common';
import {
  getServingToken,
  type ServingDefinition,
  ServingModule,
  ServingService,
  type ServingState,
} from 'nestjs-serving';
import { describeOnPlatforms, type Site } from '../../fixtures/partitions/platforms.js';

@Controller()
class Probes {
  constructor(@Inject(ServingService) private readonly servings: ServingService) {}

  @Get('live')
  live(): string {
    return 'alive';
  }

  @Get('ready')
  ready(): string {
    if (!this.servings.isReady) {
      throw new ServiceUnavailableException();
    }
    return 'ready';
  }
}

/** Requests the readiness of the application once its servings have begun to shut down. */
@Injectable()
class LastProbe implements BeforeApplicationShutdown {
  site: Site | undefined;
  statuses: number[] = [];

  async beforeApplicationShutdown(): Promise<void> {
    const { site } = this;
    const replies = site
      ? await Promise.all(['/ready', '/live'].map((path) => site.get(path)))
      : [];
    this.statuses = replies.map(({ status }) => status);
  }
}

/** Nest shuts a module down before those that it imports. */
@Module({ providers: [LastProbe] })
class LastModule {}

const echo = (name: string, options: object = {}): ServingDefinition => ({
  name,
  model: { useFactory: () => (rows: unknown[]) => rows },
  ...options,
});
const withServings = (...servings: ServingDefinition[]): ModuleMetadata => ({
  imports: [ServingModule.forRoot({ servings, isGlobal: false, imports: [LastModule] })],
  controllers: [Probes],
});

describeOnPlatforms('Readiness', (listen) => {
  it('[9.2] The application is ready when the last serving is warm and before it listens', async () => {
    const seen: boolean[] = [];
    let servings!: ServingService;
    const look = (rows: unknown[]): unknown[] => (seen.push(servings.isReady), rows);

    const site = await listen(
      withServings(echo('first'), {
        ...echo('last'),
        model: { useFactory: () => look },
        warmUp: ['a'],
        batchSize: 1,
      }),
      {
        configure: (app) => {
          servings = app.get(ServingService);
          seen.push(servings.isReady);
        },
      },
    );

    expect(seen).toEqual([false, false]);
    expect(await site.get('/ready')).toMatchObject({ status: 200, body: 'ready' });
  });

  it('[9.2] [9.3] The application is not ready from the begin of the shutdown, while it lives and answers', async () => {
    const site = await listen(withServings(echo('echo')));
    const probe = site.app.get(LastProbe);
    probe.site = site;

    await site.app.close();

    expect(probe.statuses).toEqual([503, 200]);
    expect(site.app.get(ServingService).isReady).toBe(false);
  });

  it('[9.2] The application is ready without servings, and with handles that a test has overridden', async () => {
    const sites = [
      await listen(withServings()),
      await listen(withServings(echo('echo')), {
        override: (builder) =>
          builder.overrideProvider(getServingToken('echo')).useValue({ name: 'echo' }),
      }),
    ];
    for (const site of sites) {
      expect(await site.get('/ready')).toMatchObject({ status: 200, body: 'ready' });
    }
  });

  it('[9.2] The application is not ready when one serving is not', async () => {
    let state: ServingState = 'ready';
    const site = await listen(withServings(echo('first'), echo('last')), {
      override: (builder) =>
        builder.overrideProvider(getServingToken('last')).useValue({
          get state() {
            return state;
          },
        }),
    });
    expect(await site.get('/ready')).toMatchObject({ status: 200 });

    state = 'starting';

    expect(await site.get('/ready')).toMatchObject({ status: 503 });
    expect(await site.get('/live')).toMatchObject({ status: 200 });
  });
});

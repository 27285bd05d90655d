// #region imports
import { Controller, Get, Module } from '@nestjs/common';
import { HealthCheck, HealthCheckService, TerminusModule } from '@nestjs/terminus';
import { ServingHealthIndicator } from 'nestjs-serving/terminus';
// #endregion
import { describe, expect, it } from '@jest/globals';
import { ServingModule, ServingService } from 'nestjs-serving';
import { BatchScript, overrideServing } from 'nestjs-serving/testing';
import { Test } from '@nestjs/testing';
import { describeOnPlatforms } from '../../fixtures/partitions/platforms.js';
import { worker } from '../../fixtures/partitions/worker.js';

// #region controller
@Controller('health')
export class HealthController {
  constructor(
    private readonly health: HealthCheckService,
    private readonly servings: ServingHealthIndicator,
  ) {}

  @Get('live')
  @HealthCheck()
  live() {
    return this.health.check([() => this.servings.isLive('servings')]);
  }

  @Get('ready')
  @HealthCheck()
  ready() {
    return this.health.check([() => this.servings.isReady('servings')]);
  }
}

@Module({
  imports: [TerminusModule],
  providers: [ServingHealthIndicator],
  controllers: [HealthController],
})
export class HealthModule {}
// #endregion

const echo = { name: 'echo', model: { useFile: worker('echo') } };
const slow = {
  name: 'slow',
  model: { useFactory: () => (rows: unknown[]) => rows },
  recovery: { runTimeout: 20 },
};

describeOnPlatforms('Health checks', (listen) => {
  it("[9.2] The manual's health checks answer with the state of every serving", async () => {
    const site = await listen({
      imports: [ServingModule.forRoot({ servings: [echo] }), HealthModule],
    });

    for (const path of ['/health/live', '/health/ready']) {
      const { status, body } = await site.get(path);
      expect(status).toBe(200);
      expect(body).toMatchObject({
        status: 'ok',
        info: {
          servings: {
            status: 'up',
            servings: {
              echo: { state: 'ready', queued: 0, partitions: { up: 1, all: 1, restarts: 0 } },
            },
          },
        },
      });
    }
  });
});

describe('Health checks of a serving that hangs', () => {
  it('[9.2] [5.6] A serving that hangs is not ready, and not live when only a new process helps, with the reason', async () => {
    const script = new BatchScript<string, string>();
    const module = Test.createTestingModule({
      imports: [ServingModule.forRoot({ servings: [slow] }), HealthModule],
    });
    const testing = await overrideServing(module, slow).useScript(script).compile();
    const app = await testing.createNestApplication({ logger: false }).init();
    const indicator = app.get(ServingHealthIndicator);
    const hanging = app.get(ServingService).batchedRun('slow', 'a');
    const held = await script.next();

    await expect(hanging).rejects.toMatchObject({ code: 'SERVING_RUN_TIMEOUT' });

    const reason =
      'Partition 0 has run a batch of 1 row for over 20 ms, and takes no other until that returns';
    for (const check of [indicator.isLive('x'), indicator.isReady('x')]) {
      expect(check).toMatchObject({ x: { status: 'down', message: `serving "slow": ${reason}` } });
    }
    held.finish(['a']);
    await app.close();
    expect(indicator.isReady('x')).toMatchObject({
      x: { status: 'down', message: 'serving "slow": it is closed' },
    });
  });
});

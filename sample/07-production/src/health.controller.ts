import { Controller, Get } from '@nestjs/common';
import { HealthCheck, HealthCheckService } from '@nestjs/terminus';
import { ServingHealthIndicator } from 'nestjs-serving/terminus';

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

import { Controller, Get } from '@nestjs/common';
import { StatsService } from './stats.service.js';

@Controller()
export class StatusController {
  constructor(private readonly statistics: StatsService) {}

  @Get('health')
  health() {
    return { status: 'ok' };
  }

  @Get('stats')
  stats() {
    return this.statistics.all();
  }
}

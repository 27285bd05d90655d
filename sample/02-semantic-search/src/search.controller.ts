import {
  BadRequestException,
  Controller,
  Get,
  Header,
  Post,
  Query,
  Sse,
  StreamableFile,
} from '@nestjs/common';
import { createReadStream } from 'node:fs';
import { map } from 'rxjs';
import { BurstService } from './burst.service.js';
import { SearchService } from './search.service.js';
import { StatsService } from './stats.service.js';

@Controller()
export class SearchController {
  constructor(
    private readonly searches: SearchService,
    private readonly bursts: BurstService,
    private readonly statistics: StatsService,
  ) {}

  @Get()
  @Header('Content-Type', 'text/html; charset=utf-8')
  page() {
    return new StreamableFile(createReadStream(new URL('../public/index.html', import.meta.url)));
  }

  @Get('search')
  search(@Query('q') question: unknown) {
    if (typeof question !== 'string' || !question.trim()) {
      throw new BadRequestException('Ask something: /search?q=...');
    }
    return this.searches.search(question);
  }

  @Post('burst')
  burst() {
    return this.bursts.fire(200);
  }

  @Get('stats')
  stats() {
    return this.statistics.stats;
  }

  @Sse('stats/stream')
  stream() {
    return this.statistics.stats$.pipe(map((data) => ({ data })));
  }
}

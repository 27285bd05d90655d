import {
  Controller,
  Get,
  Header,
  type MessageEvent,
  Query,
  Sse,
  StreamableFile,
} from '@nestjs/common';
import { createReadStream } from 'node:fs';
import { map, type Observable } from 'rxjs';
import { GenerateQuery } from './generate.query.js';
import { StatsService } from './stats.service.js';
import { WriterService } from './writer.service.js';

@Controller()
export class WriterController {
  constructor(
    private readonly writer: WriterService,
    private readonly statistics: StatsService,
  ) {}

  @Get()
  @Header('Content-Type', 'text/html; charset=utf-8')
  page() {
    return new StreamableFile(createReadStream(new URL('../public/index.html', import.meta.url)));
  }

  @Sse('generate')
  generate(@Query() query: GenerateQuery): Observable<MessageEvent> {
    return this.writer.write(query);
  }

  @Get('stats')
  stats() {
    return this.statistics.stats;
  }

  @Sse('stats/stream')
  stream(): Observable<MessageEvent> {
    return this.statistics.stats$.pipe(map((data) => ({ data })));
  }
}

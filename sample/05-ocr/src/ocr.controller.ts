import {
  Controller,
  Get,
  Header,
  HttpCode,
  Param,
  Post,
  Req,
  Sse,
  StreamableFile,
} from '@nestjs/common';
import { InjectServing } from 'nestjs-serving';
import { createReadStream } from 'node:fs';
import type { IncomingMessage } from 'node:http';
import { map } from 'rxjs';
import { LinesService } from './lines.service.js';
import { readBody } from './read-body.js';
import type { Reader } from './reader.js';
import { StatsService } from './stats.service.js';

const largestUpload = 1_000_000;

@Controller()
export class OcrController {
  constructor(
    @InjectServing('reader') private readonly reader: Reader,
    private readonly lines: LinesService,
    private readonly statistics: StatsService,
  ) {}

  @Get()
  @Header('Content-Type', 'text/html; charset=utf-8')
  page() {
    return new StreamableFile(createReadStream(new URL('../public/index.html', import.meta.url)));
  }

  @Post('read')
  @HttpCode(200)
  async read(@Req() request: IncomingMessage) {
    return this.reader.batchedRun(await readBody(request, largestUpload));
  }

  @Get('lines')
  known() {
    return this.lines.all;
  }

  @Get('lines/:name')
  @Header('Content-Type', 'image/png')
  image(@Param('name') name: string) {
    return new StreamableFile(createReadStream(this.lines.imageOf(name)));
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

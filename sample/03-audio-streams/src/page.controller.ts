import { Controller, Get, Header, StreamableFile } from '@nestjs/common';
import { createReadStream } from 'node:fs';
import { clipFile } from './speech-clip.js';
import { StatsService } from './stats.service.js';

@Controller()
export class PageController {
  constructor(private readonly statistics: StatsService) {}

  @Get()
  @Header('Content-Type', 'text/html; charset=utf-8')
  page() {
    return new StreamableFile(createReadStream(new URL('../public/index.html', import.meta.url)));
  }

  @Get('speech.wav')
  @Header('Content-Type', 'audio/wav')
  clip() {
    return new StreamableFile(createReadStream(clipFile));
  }

  @Get('stats')
  stats() {
    return this.statistics.stats;
  }
}

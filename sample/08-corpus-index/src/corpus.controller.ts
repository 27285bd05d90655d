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
import { IndexingService } from './indexing.service.js';
import { SearchService } from './search.service.js';

@Controller()
export class CorpusController {
  constructor(
    private readonly indexing: IndexingService,
    private readonly searches: SearchService,
  ) {}

  @Get()
  @Header('Content-Type', 'text/html; charset=utf-8')
  page() {
    return new StreamableFile(createReadStream(new URL('../public/index.html', import.meta.url)));
  }

  @Post('index')
  start() {
    return this.indexing.start();
  }

  @Get('progress')
  progress() {
    return this.indexing.progress();
  }

  @Sse('progress/stream')
  stream() {
    return this.indexing.progress$.pipe(map((data) => ({ data })));
  }

  @Get('search')
  search(@Query('q') question: unknown) {
    if (typeof question !== 'string' || !question.trim()) {
      throw new BadRequestException('Ask something: /search?q=...');
    }
    return this.searches.search(question);
  }
}

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
import { RequestSignal } from 'nestjs-serving';
import { finalize, map, type Observable, ReplaySubject, Subscription, tap } from 'rxjs';
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
  generate(
    @Query() query: GenerateQuery,
    @RequestSignal() signal: AbortSignal,
  ): Promise<Observable<MessageEvent>> {
    return started(this.writer.write(query, signal));
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

/** The events, once there is one. An error before it rejects, and is answered with its status. */
function started<Event>(events: Observable<Event>): Promise<Observable<Event>> {
  return new Promise((resolve, reject) => {
    const call = new Subscription();
    const sent = new ReplaySubject<Event>();
    const open = () => resolve(sent.pipe(finalize(() => call.unsubscribe())));
    call.add(events.pipe(tap({ next: open, complete: open, error: reject })).subscribe(sent));
  });
}

import {
  Body,
  Controller,
  Delete,
  HttpCode,
  type MessageEvent,
  Param,
  ParseIntPipe,
  Post,
  Query,
  Req,
  Sse,
} from '@nestjs/common';
import type { IncomingMessage } from 'node:http';
import { map, merge, type Observable } from 'rxjs';
import { OpenStreamDto } from './open-stream.dto.js';
import { readPiece } from './read-piece.js';
import { StatsService } from './stats.service.js';
import { StreamsService } from './streams.service.js';
import { timelineOf } from './timeline.js';

@Controller('streams')
export class StreamsController {
  constructor(
    private readonly streams: StreamsService,
    private readonly statistics: StatsService,
  ) {}

  @Post()
  open(@Body() body?: OpenStreamDto) {
    return { id: this.streams.open(body?.name) };
  }

  /**
   * The body holds the next samples, however many. With `position`, the first sample's place in the
   * stream, it is checked that none is missing.
   */
  @Post(':id/chunks')
  @HttpCode(200)
  async hear(
    @Param('id') id: string,
    @Req() request: IncomingMessage,
    @Query('position', new ParseIntPipe({ optional: true })) position?: number,
  ) {
    this.streams.find(id);
    const probabilities = await this.streams.hear(id, await readPiece(request), position);
    return { probabilities, timeline: timelineOf(probabilities) };
  }

  @Delete(':id')
  @HttpCode(204)
  end(@Param('id') id: string): void {
    this.streams.find(id);
    this.streams.end(id);
  }

  /** Everything for the page over one connection, since a browser opens only six to one host. */
  @Sse('events')
  events(): Observable<MessageEvent> {
    return merge(
      this.streams.views$.pipe(map((data) => ({ type: 'streams', data: [...data] }))),
      this.statistics.stats$.pipe(map((data) => ({ type: 'batches', data }))),
    );
  }
}

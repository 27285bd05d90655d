import {
  Body,
  Controller,
  Get,
  HttpCode,
  type MessageEvent,
  Post,
  Query,
  Sse,
} from '@nestjs/common';
import { ServingService } from 'nestjs-serving';
import { map, type Observable } from 'rxjs';
import type { LettersRow, SquareRow } from './options.js';

/** What clients call. */
@Controller()
export class CallsController {
  constructor(private readonly servings: ServingService) {}

  @Post('digits')
  @HttpCode(200)
  digits(@Body() { image }: { image: string }): Promise<number[]> {
    return this.servings.batchedRun<Uint8Array, number[]>('digits', Buffer.from(image, 'base64'));
  }

  @Post('squares')
  @HttpCode(200)
  async squares(@Body() row: SquareRow): Promise<{ square: number }> {
    return { square: await this.servings.batchedRun<SquareRow, number>('squares', row) };
  }

  /** Pushed: Nest drops who does not keep up. */
  @Sse('events')
  events(@Query() query: LettersQuery): Observable<MessageEvent> {
    return this.servings
      .stream<LettersRow, string>('letters', rowOf(query))
      .pipe(map(({ output }) => ({ data: output })));
  }

  /** Pulled: the serving drops who does not keep up. */
  @Get('letters')
  async *letters(@Query() query: LettersQuery): AsyncGenerator<string> {
    for await (const { output } of this.servings.stream<LettersRow, string>(
      'letters',
      rowOf(query),
    )) {
      yield `${output}\n`;
    }
  }
}

/** A query has texts. */
type LettersQuery = { readonly [Field in keyof LettersRow]: string };

function rowOf({ id, steps, length }: LettersQuery): LettersRow {
  return {
    id: Number(id),
    length: Number(length),
    ...(steps !== undefined && { steps: Number(steps) }),
  };
}

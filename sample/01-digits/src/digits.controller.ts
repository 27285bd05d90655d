import {
  Body,
  Controller,
  Get,
  HttpCode,
  NotFoundException,
  Param,
  ParseIntPipe,
  Post,
  UnprocessableEntityException,
} from '@nestjs/common';
import { Batched } from 'nestjs-serving';
import { DrawingDto } from './drawing.dto.js';
import { readDrawing, toDrawing } from './drawing.js';
import { KnownDigits, type Match } from './known-digits.js';

@Controller()
export class DigitsController {
  constructor(private readonly knownDigits: KnownDigits) {}

  /**
   * Only the preprocessing: what it returns is the input of the serving `digits`, whose output is
   * the reply.
   */
  @Post('classify')
  @HttpCode(200)
  @Batched('digits')
  classify(@Body() { image }: DrawingDto): Float32Array {
    return readDrawing(image);
  }

  /**
   * Runs once for many clients: each gets the entry of its own drawing, and an error goes to that
   * one client.
   */
  @Post('compare')
  @HttpCode(200)
  @Batched({ batchSize: 16, batchTimeout: 5, types: [DrawingDto] })
  compare(@Body() drawings: DrawingDto[]): (Match | Error)[] {
    const matches = this.knownDigits.match(drawings.map(({ image }) => readDrawing(image)));
    return matches.map(
      (match) => match ?? new UnprocessableEntityException('A blank image is like no digit'),
    );
  }

  /** A digit to try the other two with. */
  @Get('digits/:index')
  digit(@Param('index', ParseIntPipe) index: number): DrawingDto & { label: number } {
    const digit = this.knownDigits.at(index);
    if (!digit) {
      throw new NotFoundException(`There is no digit ${index}`);
    }
    return { label: digit.label, image: toDrawing(digit.ink) };
  }
}

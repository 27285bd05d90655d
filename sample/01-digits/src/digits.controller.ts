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
   * Prepares the input of the serving `digits`. The output of the serving is the reply.
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
      (match) => match ?? new UnprocessableEntityException('No digit is similar to a blank image'),
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

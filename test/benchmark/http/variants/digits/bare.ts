import { Body, Controller, Module, Post } from '@nestjs/common';
import { ImageDto, type Reply } from './image.js';

/** What HTTP, JSON and Nest cost: reads the same body, and answers without a model. */
@Controller()
export class BareController {
  @Post()
  async classify(@Body() { image }: ImageDto): Promise<Reply> {
    return { digit: Float32Array.from(image).length % 10 };
  }
}

@Module({ controllers: [BareController] })
export class BareModule {}

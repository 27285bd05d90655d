import { Body, Controller, Module, Post } from '@nestjs/common';
import { InjectServing, ServingModule, type ServingOf } from 'nestjs-serving';
import { digits } from './digits.serving.js';
import { ImageDto, type Reply } from './image.js';

/** The handler calls the serving, and passes no signal. */
@Controller()
class CallController {
  constructor(@InjectServing(digits) private readonly serving: ServingOf<typeof digits>) {}

  @Post()
  classify(@Body() { image }: ImageDto): Promise<Reply> {
    return this.serving.batchedRun(image);
  }
}

@Module({
  imports: [ServingModule.forRoot({ servings: [digits] })],
  controllers: [CallController],
})
export class CallModule {}

import { Body, Controller, Module, Post } from '@nestjs/common';
import { InjectServing, RequestSignal, ServingModule, type ServingOf } from 'nestjs-serving';
import { digits } from './digits.serving.js';
import { ImageDto, type Reply } from './image.js';

/** The handler calls the serving, which drops the call when the client is gone. */
@Controller()
class SignalController {
  constructor(@InjectServing(digits) private readonly serving: ServingOf<typeof digits>) {}

  @Post()
  classify(@Body() { image }: ImageDto, @RequestSignal() signal: AbortSignal): Promise<Reply> {
    return this.serving.batchedRun(image, { signal });
  }
}

@Module({
  imports: [ServingModule.forRoot({ servings: [digits] })],
  controllers: [SignalController],
})
export class SignalModule {}

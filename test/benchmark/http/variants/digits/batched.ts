import { Body, Controller, Module, Post } from '@nestjs/common';
import { Batched, ServingModule } from 'nestjs-serving';
import { digits } from './digits.serving.js';
import { ImageDto } from './image.js';

/** The handler only says what a row is. */
@Controller()
export class BatchedController {
  @Post()
  @Batched('digits')
  classify(@Body() { image }: ImageDto): number[] {
    return image;
  }
}

@Module({
  imports: [ServingModule.forRoot({ servings: [digits] })],
  controllers: [BatchedController],
})
export class BatchedModule {}

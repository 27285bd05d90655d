import { Body, Controller, Module, Post } from '@nestjs/common';
import { Batched, ServingModule } from 'nestjs-serving';
import { BareController } from './bare.js';
import { digits } from './digits.serving.js';
import { ImageDto } from './image.js';

@Controller('serving')
class ServingController {
  @Post()
  @Batched('digits')
  classify(@Body() { image }: ImageDto): number[] {
    return image;
  }
}

/** The bare route, with a route that calls a serving beside it. */
@Module({
  imports: [ServingModule.forRoot({ servings: [digits] })],
  controllers: [BareController, ServingController],
})
export class BesideModule {}

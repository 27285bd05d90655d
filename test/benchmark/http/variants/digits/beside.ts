import { Controller, Module } from '@nestjs/common';
import { ServingModule } from 'nestjs-serving';
import { BareController } from './bare.js';
import { BatchedController } from './batched.js';
import { digits } from './digits.serving.js';

@Controller('serving')
class ServingController extends BatchedController {}

/** The bare route, with a route that calls a serving beside it. */
@Module({
  imports: [ServingModule.forRoot({ servings: [digits] })],
  controllers: [BareController, ServingController],
})
export class BesideModule {}

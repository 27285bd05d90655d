import { Module, ValidationPipe } from '@nestjs/common';
import { APP_PIPE } from '@nestjs/core';
import { ServingModule } from 'nestjs-serving';
import { digits } from './digits.serving.js';
import { DigitsController } from './digits.controller.js';
import { KnownDigits } from './known-digits.js';
import { StatsService } from './stats.service.js';
import { StatusController } from './status.controller.js';

@Module({
  imports: [ServingModule.forRoot({ servings: [digits] })],
  controllers: [DigitsController, StatusController],
  providers: [KnownDigits, StatsService, { provide: APP_PIPE, useValue: new ValidationPipe() }],
})
export class AppModule {}

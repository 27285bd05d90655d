import { Module } from '@nestjs/common';
import { ServingBoardModule } from 'nestjs-serving/board';
import { CallModule } from './call.js';

@Module({ imports: [CallModule, ServingBoardModule.forRoot({ guards: [] })] })
export class BoardModule {}

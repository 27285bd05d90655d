import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { ServingModule } from 'nestjs-serving';
import { ServingClusterModule } from 'nestjs-serving/distribution';
import { digits } from './digits.serving.js';
import { distribution } from './distribution.js';

@Module({
  imports: [
    ServingModule.forRoot({ servings: [digits] }),
    ServingClusterModule.forRoot(distribution()),
  ],
})
class ModelNode {}

const app = await NestFactory.createApplicationContext(ModelNode);
app.enableShutdownHooks();
process.send?.({ ready: true });

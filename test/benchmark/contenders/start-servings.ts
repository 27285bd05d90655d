import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { defineServing, ServingModule } from 'nestjs-serving';
import { mlp } from '../models/mlp.js';
import { session } from '../models/model.js';

const count = Number(process.argv[2]);
const servings = Array.from({ length: count }, (_, index) =>
  defineServing({ name: `serving ${index}`, model: { file: mlp.path, session } }),
);

@Module({ imports: [ServingModule.forRoot({ servings })] })
class Application {}

await NestFactory.createApplicationContext(Application, { logger: ['error'] });
console.log(process.uptime() * 1000);
process.exit();

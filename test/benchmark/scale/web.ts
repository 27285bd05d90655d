// #region web
import { Body, Controller, HttpCode, Module, Post } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { FastifyAdapter, type NestFastifyApplication } from '@nestjs/platform-fastify';
import { Batched, ServingModule, Tensor } from 'nestjs-serving';
import { ServingClusterModule } from 'nestjs-serving/distribution';
import { webNode } from './wiring.js';

@Controller('digits')
class DigitsController {
  @Post()
  @HttpCode(200)
  @Batched('digits')
  classify(@Body() { image }: { readonly image: number[] }): { readonly image: Tensor } {
    return { image: new Tensor('float32', Float32Array.from(image), [1, image.length]) };
  }
}

/** No model, and no runtime for models. */
@Module({
  imports: [
    ServingModule.forRoot(),
    ServingClusterModule.forRoot({ ...webNode, remotes: ['digits'] }),
  ],
  controllers: [DigitsController],
})
class WebNode {}

const app = await NestFactory.create<NestFastifyApplication>(WebNode, new FastifyAdapter(), {
  logger: ['error', 'warn'],
});
app.enableShutdownHooks();
await app.listen(Number(process.env['WEB_PORT']), '127.0.0.1');
// #endregion

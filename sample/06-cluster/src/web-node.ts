import { Body, Controller, Module, Post } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { Batched, ServingModule } from 'nestjs-serving';
import { ServingClusterModule } from 'nestjs-serving/distribution';
import { distribution } from './distribution.js';

@Controller()
class DigitsController {
  /** The serving is on another node; its name is enough. */
  @Post('digits')
  @Batched('digits')
  read(@Body() { pixels }: { readonly pixels: string }): Uint8Array {
    return Buffer.from(pixels, 'base64');
  }
}

/** No model, and no runtime for models. */
@Module({
  imports: [
    ServingModule.forRoot(),
    ServingClusterModule.forRoot({ ...distribution(), remotes: ['digits'] }),
  ],
  controllers: [DigitsController],
})
class WebNode {}

const app = await NestFactory.create(WebNode);
app.enableShutdownHooks();
await app.listen(process.env['PORT'] ?? 3000, '127.0.0.1');
process.send?.({ ready: true, url: await app.getUrl() });

import { Body, Controller, Module, Post } from '@nestjs/common';
import { InferenceSession, Tensor } from 'onnxruntime-node';
import { digits } from '../../../models/digits.js';
import { session as options } from '../../../models/model.js';
import { ImageDto, likeliest, type Reply } from './image.js';

/** What one writes first: the request handler runs the model on the main thread. */
@Controller()
class PerRequestController {
  private readonly session = InferenceSession.create(digits.path, options);

  @Post()
  async classify(@Body() { image }: ImageDto): Promise<Reply> {
    const session = await this.session;
    const { probabilities } = await session.run({
      image: new Tensor('float32', Float32Array.from(image), [1, ...digits.rowShape]),
    });
    return { digit: likeliest(probabilities!.data as Float32Array) };
  }
}

@Module({ controllers: [PerRequestController] })
export class PerRequestModule {}

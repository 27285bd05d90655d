import { Body, Controller, Header, Module, Post } from '@nestjs/common';
import { Batched, defineServing, ServingModule, Tensor } from 'nestjs-serving';
import { mlp } from '../../../models/mlp.js';
import { batchSize, session } from '../../../models/model.js';
import { BINARY, toBytes, toFloats } from '../../binary.js';

const scorer = defineServing({
  name: 'scorer',
  model: { file: mlp.path, session },
  batchSize,
  postprocess: ({ output }: { output: Tensor }) => toBytes(output.data as Float32Array),
});

/** The handler only says what a row is. */
@Controller()
class BatchedController {
  @Post()
  @Header('content-type', BINARY)
  @Batched('scorer')
  score(@Body() body: Buffer): Tensor {
    return new Tensor('float32', toFloats(body), [1, ...mlp.rowShape]);
  }
}

@Module({
  imports: [ServingModule.forRoot({ servings: [scorer] })],
  controllers: [BatchedController],
})
export class BatchedModule {}

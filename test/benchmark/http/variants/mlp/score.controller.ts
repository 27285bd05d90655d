import { Body, Controller, Header, Post } from '@nestjs/common';
import { BINARY, toBytes, toFloats } from '../../binary.js';

/** How a request reaches the model when nothing batches it. */
export abstract class Scorer {
  abstract score(row: Float32Array<ArrayBuffer>): Promise<Float32Array>;
}

@Controller()
export class ScoreController {
  constructor(private readonly scorer: Scorer) {}

  @Post()
  @Header('content-type', BINARY)
  async score(@Body() body: Buffer): Promise<Buffer> {
    return toBytes(await this.scorer.score(toFloats(body)));
  }
}

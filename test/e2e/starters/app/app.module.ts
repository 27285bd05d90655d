// #region app
// src/app.module.ts
import { Body, Controller, HttpCode, Module, Post } from '@nestjs/common';
import { ArrayMaxSize, IsArray, Matches } from 'class-validator';
import {
  defineServing,
  InjectServing,
  ServingModule,
  type ServingOf,
  Tensor,
} from 'nestjs-serving';

const digits = defineServing({
  name: 'digits',
  model: 'digits.onnx',

  // Runs once per call: makes one row of the model's input from a drawing of 7 by 7 characters.
  preprocess(drawing: string[]) {
    const pixels = Float32Array.from({ length: 28 * 28 }, (_, i) =>
      drawing[Math.trunc(i / 112)]?.[Math.trunc((i % 28) / 4)] === '#' ? 1 : 0,
    );
    return { batch: { image: new Tensor('float32', pixels, [1, 784]) } };
  },

  // Runs once per call: makes the reply from the call's own row of the model's output.
  postprocess({ probabilities }: { probabilities: Tensor }) {
    const values = probabilities.data as Float32Array;
    const confidence = Math.max(...values);
    return { digit: values.indexOf(confidence), confidence };
  },
});

class DrawingDto {
  @IsArray()
  @ArrayMaxSize(7)
  @Matches(/^[ #]{0,7}$/, { each: true, message: 'each line is up to 7 of " " and "#"' })
  drawing!: string[];
}

@Controller('digits')
class DigitsController {
  constructor(@InjectServing(digits) private readonly reader: ServingOf<typeof digits>) {}

  @Post()
  @HttpCode(200)
  read(@Body() { drawing }: DrawingDto) {
    return this.reader.batchedRun(drawing);
  }
}

@Module({
  imports: [ServingModule.forRoot({ servings: [digits] })],
  controllers: [DigitsController],
})
export class AppModule {}
// #endregion

// #region imports
import { Controller, Module, Post } from '@nestjs/common';
import { APP_INTERCEPTOR } from '@nestjs/core';
import {
  ServingModule,
  ServingService,
  Tensor,
  TensorBody,
  TensorJsonInterceptor,
} from 'nestjs-serving';
// #endregion
import { expect, it } from '@jest/globals';
import { describeOnPlatforms } from '../../fixtures/partitions/platforms.js';

const digits = { name: 'digits', model: 'sample/01-digits/model/digits.onnx' };

// #region endpoint
@Controller('digits')
export class DigitsController {
  constructor(private readonly servings: ServingService) {}

  @Post()
  read(@TensorBody() image: Tensor) {
    return this.servings.batchedRun('digits', { image }); // { probabilities: Tensor }
  }
}

@Module({
  imports: [ServingModule.forRoot({ servings: [digits] })],
  controllers: [DigitsController],
  providers: [{ provide: APP_INTERCEPTOR, useClass: TensorJsonInterceptor }],
})
export class AppModule {}
// #endregion

describeOnPlatforms('The manual on tensors over HTTP', (listen) => {
  it("[10.6] The manual's client sends and receives a tensor", async () => {
    const { app } = await listen({ imports: [AppModule] });
    const url = await app.getUrl();
    const pixels = Array.from({ length: 784 }, () => 0);
    // #region client
    const response = await fetch(`${url}/digits`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ $tensor: { shape: [1, 784], datatype: 'FP32', data: pixels } }),
    });
    const { probabilities } = JSON.parse(await response.text());
    const { shape, data } = probabilities.$tensor; // [1, 10] and ten numbers
    // #endregion
    expect(shape).toEqual([1, 10]);
    expect(data).toEqual(Array.from({ length: 10 }, () => expect.any(Number)));
  });

  it("[10.6] The manual's client sends and receives base64", async () => {
    @Controller('vectors')
    class VectorsController {
      @Post()
      echo(@TensorBody() vector: Tensor) {
        return vector;
      }
    }
    // #region base64
    const interceptor = new TensorJsonInterceptor({ tensors: 'base64' });
    // #endregion
    const { app } = await listen({
      controllers: [VectorsController],
      providers: [{ provide: APP_INTERCEPTOR, useValue: interceptor }],
    });
    const url = await app.getUrl();
    // #region base64-client
    const vector = Float32Array.of(1, 2, 3);
    const body = {
      $tensor: {
        shape: [3],
        datatype: 'FP32',
        data: Buffer.from(vector.buffer).toString('base64'),
      },
    };
    const response = await fetch(`${url}/vectors`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    });
    const { $tensor } = JSON.parse(await response.text());
    const bytes = Uint8Array.from(Buffer.from($tensor.data, 'base64'));
    const received = new Float32Array(bytes.buffer);
    // #endregion
    expect(received).toEqual(vector);
  });
});

// #region imports
import { Module } from '@nestjs/common';
import { ApiKeyGuard, ServingModule } from 'nestjs-serving';
import { endpoint, InferenceProtocolModule } from 'nestjs-serving/inference-protocol';
// #endregion
import { expect, it } from '@jest/globals';
import { Test } from '@nestjs/testing';
import { createServing, defineServing, Tensor } from 'nestjs-serving';
import { GrpcDoor } from '../../../lib/extensions/inference-protocol/server/grpc/grpc-door.js';

const digits = defineServing({ name: 'digits', model: 'sample/01-digits/model/digits.onnx' });
const PORT = 0;
process.env['API_KEY'] = 'manual';

// #region module
@Module({
  imports: [
    ServingModule.forRoot({ servings: [digits] }),
    InferenceProtocolModule.forRoot({
      guards: [new ApiKeyGuard(process.env['API_KEY'])], // For HTTP and gRPC.
      grpc: { port: PORT }, // Usually 8001.
    }),
  ],
})
export class AppModule {}
// #endregion

it('[18.12] [18.19] [X1] the example of gRPC serves clients with the key, by both doors', async () => {
  const module = await Test.createTestingModule({ imports: [AppModule] }).compile();
  const app = module.createNestApplication();
  await app.listen(0, '127.0.0.1');
  const { port } = app.get(GrpcDoor, { strict: false });
  const url = `grpc://127.0.0.1:${port}`;
  const metadata = { 'x-api-key': 'manual' };
  const serving = createServing<unknown, Record<string, Tensor>, unknown, unknown>({
    name: 'digits',
    model: endpoint({ url, metadata }),
  });
  try {
    await serving.start();
    const image = new Tensor('float32', new Float32Array(784), [1, 784]);
    expect((await serving.batchedRun({ image }))['probabilities']!.dims).toEqual([1, 10]);
    const withoutKey = createServing({ name: 'digits', model: endpoint(url) });
    await expect(withoutKey.start()).rejects.toThrow('UNAUTHENTICATED');
    const http = await app.getUrl();
    const statuses = await Promise.all(
      [{}, metadata].map(async (headers) => (await fetch(`${http}/v2`, { headers })).status),
    );
    expect(statuses).toEqual([401, 200]);
  } finally {
    await serving.close();
    await app.close();
  }
});

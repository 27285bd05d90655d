import { afterAll, beforeAll, expect, it } from '@jest/globals';
// #region imports
import { defineServing, Tensor } from 'nestjs-serving';
import { endpoint } from 'nestjs-serving/inference-protocol';
// #endregion
import { createServing } from 'nestjs-serving';
import { describeUnless } from '../../fixtures/describe-unless.js';
import { missingServer, ModelServer } from '../../fixtures/endpoints/model-servers.js';

// #region one
const resnet = defineServing({
  name: 'resnet', // Also the name of the model on the server.
  model: endpoint('grpc://triton:8001'),
});
// #endregion

// #region several
const double = defineServing({
  name: 'doubler',
  model: endpoint(
    [
      'grpc://a:8001',
      {
        url: 'grpcs://b:8001',
        concurrency: 4, // Batches at once, and so twice as many as a, which has 2.
        metadata: () => ({ authorization: `Bearer ${process.env['MODEL_KEY']}` }),
      },
    ],
    'double', // The name of the model on the servers.
  ),
  rollout: { version: 'v1' },
  batchSize: 16,
  preprocess: (numbers: number[]) => ({ batch: { x: new Tensor('float32', numbers, [1, 4]) } }),
  postprocess: ({ y }: { y: Tensor }) => [...(y.data as Float32Array)],
});
// #endregion

// #region axes
const detector = defineServing({
  name: 'detector',
  model: endpoint('grpc://triton:8001', {
    name: 'yolo',
    outputs: { boxes: { batchAxis: 1 } }, // The rows of all others are on axis 0.
    fetches: ['boxes', 'scores'],
  }),
});
// #endregion

describeUnless(missingServer('mlserver'), 'the manual on endpoints', () => {
  let server: ModelServer;

  beforeAll(async () => {
    server = await ModelServer.mlserver();
  });
  afterAll(() => server.close());

  it('[19.1] the example with several endpoints calls the model on them', async () => {
    const serving = createServing({ ...double, model: endpoint(server.url, 'double') });
    await serving.start();
    try {
      expect(await serving.batchedRun([1, 2, 3, 4])).toEqual([2, 4, 6, 8]);
    } finally {
      await serving.close();
    }
  });

  it('[19.11] the other examples are valid definitions', () => {
    expect(() => [resnet, detector].map((each) => createServing(each))).not.toThrow();
  });
});

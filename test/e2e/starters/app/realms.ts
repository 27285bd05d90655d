import { createServing, Tensor } from 'nestjs-serving';

const models = ['thread', 'process'] as const;

it.each(models)('gets tensors of its own realm from a %s', async (isolation) => {
  const digits = createServing({ name: 'digits', model: { file: 'digits.onnx', isolation } });
  await digits.start();
  const image = new Tensor('float32', new Float32Array(784), [1, 784]);
  const { probabilities } = (await digits.batchedRun({ image })) as { probabilities: Tensor };
  expect(probabilities).toBeInstanceOf(Tensor);
  expect(probabilities.data).toBeInstanceOf(Float32Array);
  await digits.close();
});

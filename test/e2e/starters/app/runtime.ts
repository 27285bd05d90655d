/** @jest-environment nestjs-serving/jest-environment */
import { InferenceSession } from 'onnxruntime-node';
import { Tensor } from 'nestjs-serving';

it('runs onnxruntime itself', async () => {
  const session = await InferenceSession.create('digits.onnx');
  const image = new Tensor('float32', new Float32Array(784), [1, 784]);
  const { probabilities } = await session.run({ image });
  expect(probabilities).toBeInstanceOf(Tensor);
  expect(probabilities.data).toBeInstanceOf(Float32Array);
});

import { createServing, Tensor } from 'nestjs-serving';

const image = new Tensor('float32', new Float32Array(784), [1, 784]);
const answers = {};
for (const isolation of ['native', 'thread', 'process', 'none']) {
  const serving = createServing({ name: 'digits', model: { file: 'digits.onnx', isolation } });
  await serving.start();
  const { probabilities } = await serving.batchedRun({ image });
  answers[isolation] = probabilities.dims;
  await serving.close();
}
console.log(JSON.stringify(answers));

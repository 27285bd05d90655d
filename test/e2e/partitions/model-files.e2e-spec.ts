import { existsSync } from 'node:fs';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it } from '@jest/globals';
import { InvalidServingError, ServingLoadError, Tensor } from 'nestjs-serving';
import type { Runner } from '../../../lib/core/definition/serving-definition.js';
import { echoModel, recurrentModel, value } from '../../fixtures/models/models.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

const digits = new URL('../../../sample/01-digits/model/digits.onnx', import.meta.url);
const path = fileURLToPath(digits);
const blank = new Tensor('float32', new Float32Array(784), [1, 784]);

describe('A serving of an ONNX file', () => {
  const serve = useServings();
  let folder: string;

  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), 'models-'));
  });

  afterEach(() => rm(folder, { recursive: true }));

  it.each<[string, () => Promise<string | URL | Uint8Array>]>([
    ['its absolute path', async () => path],
    ['its path from the working directory', async () => relative('', path)],
    ['its URL', async () => digits],
    ['its URL as a string', async () => digits.href],
    ['its bytes', async () => new Uint8Array(await readFile(digits))],
    [
      'its bytes inside a larger buffer',
      async () => Buffer.concat([Buffer.alloc(100), await readFile(digits)]).subarray(100),
    ],
  ])('[1.3] A model is loaded by %s', async (_, load) => {
    const serving = await serve<{ probabilities: Tensor }>({
      name: 'digits',
      model: await load(),
      partitions: 2,
    });

    const { probabilities } = await serving.batchedRun({ image: blank });

    expect(probabilities).toMatchObject({ type: 'float32', dims: [1, 10] });
  });

  it('[1.3] The bytes of a model stay with their owner', async () => {
    const model = echoModel({ x: value('float32', 'batch') });
    const before = Uint8Array.from(model);

    await serve({ name: 'echo', model });

    expect(model).toEqual(Buffer.from(before));
  });

  it('[1.3] A bare tensor is accepted by a model with one input', async () => {
    const serving = await serve<object>({
      name: 'echo',
      model: echoModel({ x: value('float32', 'batch', 2) }),
    });

    const replies = await Promise.all([
      serving.batchedRun(floats([1, 2], [1, 2])),
      serving.run({ x: floats([1, 2], [1, 2]) }),
    ]);

    expect(replies).toEqual([
      { same_x: floats([1, 2], [1, 2]) },
      { same_x: floats([1, 2], [1, 2]) },
    ]);
  });

  it('[1.3] Names, types and dynamic axes are read from the file', async () => {
    const serving = await serve({ name: 'echo', model: recurrentModel(2, 'batch') });

    await expect(serving.batchedRun('rows')).rejects.toThrow(
      'Serving "echo" takes [x: float32[batch, 3], state: float32[2, batch, 3], rate: int64[]] and was given [plain values]',
    );
  });

  it('[1.3] [5.1] Session options are passed through, and those of a partition take precedence', async () => {
    const [shared, own] = [join(folder, 'shared.onnx'), join(folder, 'own.onnx')];

    await serve({
      name: 'echo',
      model: {
        file: echoModel({ x: value('float32', 'batch') }),
        session: { optimizedModelFilePath: shared, logSeverityLevel: 3 },
      },
      partitions: [{}, { optimizedModelFilePath: own }],
    });

    expect([shared, own].map((file) => existsSync(file))).toEqual([true, true]);
  });

  it.each<[string, Runner, new () => Error, string]>([
    [
      'the file is missing',
      'missing.onnx',
      InvalidServingError,
      `there is no file ${join(process.cwd(), 'missing.onnx')}`,
    ],
    ['the file is no model', import.meta.filename, ServingLoadError, import.meta.filename],
    [
      'the bytes are no model',
      Uint8Array.of(1, 2, 3),
      ServingLoadError,
      'Cannot load the model of 3 bytes',
    ],
    [
      'the library refuses an option of the session',
      { file: path, session: { optimizedModelFilePath: '/no/folder/model.onnx' } },
      ServingLoadError,
      'No such file or directory',
    ],
    [
      'an input is unknown',
      { file: path, inputs: { picture: { batchAxis: 1 } } },
      InvalidServingError,
      'no input "picture"; it has image',
    ],
    [
      'an axis is not there',
      { file: path, inputs: { image: { batchAxis: 2 } } },
      InvalidServingError,
      'batchAxis can be 0 to 1',
    ],
    [
      'an output is unknown',
      { file: path, outputs: { logits: { batchAxis: 1 } } },
      InvalidServingError,
      'no output "logits"',
    ],
    [
      'only an output is declared with rows',
      {
        file: path,
        inputs: { image: { batchAxis: null } },
        outputs: { probabilities: { batchAxis: 0 } },
      },
      InvalidServingError,
      'and no input of the model has a batch axis',
    ],
  ])('[9.1] A model fails to start with the reason when %s', async (_, model, type, message) => {
    const starting = serve({ name: 'digits', model });

    await expect(starting).rejects.toThrow(type);
    await expect(starting).rejects.toThrow('Serving "digits": ');
    await expect(starting).rejects.toThrow(message);
  });
});

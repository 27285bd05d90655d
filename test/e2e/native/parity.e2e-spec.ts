import { readdirSync, readFileSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { Tensor } from 'nestjs-serving';
import { InferenceSession } from 'onnxruntime-node';
import {
  NativeRunOptions,
  type NativeSession,
  openNativeSession,
} from '../../../lib/features/onnx/native-session.js';
import { nativeRuntime, RunLane } from '../../../lib/features/onnx/native-runtime.js';
import { feedOf } from '../../../lib/features/onnx/onnx-model.js';
import {
  echoModel,
  linearModel,
  nestedModel,
  quantisedModel,
  recurrentModel,
  summingModel,
  transposingModel,
  value,
  weightsApartModel,
} from '../../fixtures/models/models.js';
import { node, onnxModel } from '../../fixtures/models/onnx-writer.js';

/** Tensors of each type that both take, with the extremes of the type. */
const tensors: Readonly<Record<string, Tensor>> = {
  float32: new Tensor('float32', Float32Array.of(1.5, -0, NaN, Infinity, 3e38, 1e-45), [2, 3]),
  float64: new Tensor('float64', Float64Array.of(Math.PI, -1e308, 5e-324, 0, 1, 2), [2, 3]),
  float16: new Tensor('float16', Uint16Array.of(0x3c00, 0xfbff, 1, 0x7c00, 0, 0x8000), [2, 3]),
  int8: new Tensor('int8', Int8Array.of(-128, 127, 0, 1, 2, 3), [2, 3]),
  uint8: new Tensor('uint8', Uint8Array.of(0, 255, 1, 2, 3, 4), [2, 3]),
  int16: new Tensor('int16', Int16Array.of(-32_768, 32_767, 0, 1, 2, 3), [2, 3]),
  uint16: new Tensor('uint16', Uint16Array.of(0, 65_535, 1, 2, 3, 4), [2, 3]),
  int32: new Tensor('int32', Int32Array.of(-(2 ** 31), 2 ** 31 - 1, 0, 1, 2, 3), [2, 3]),
  uint32: new Tensor('uint32', Uint32Array.of(0, 2 ** 32 - 1, 1, 2, 3, 4), [2, 3]),
  int64: new Tensor(
    'int64',
    BigInt64Array.of(-(2n ** 63n), 2n ** 63n - 1n, 0n, 1n, 2n, 3n),
    [2, 3],
  ),
  uint64: new Tensor('uint64', BigUint64Array.of(0n, 2n ** 64n - 1n, 1n, 2n, 3n, 4n), [2, 3]),
  bool: new Tensor('bool', Uint8Array.of(1, 0, 1, 0, 0, 1), [2, 3]),
  string: new Tensor(
    'string',
    ['', 'a', 'äöü', '🙂 \u0000?'.slice(0, 3), 'x'.repeat(1000), 'b'],
    [2, 3],
  ),
};

const models: Readonly<Record<string, Uint8Array>> = {
  linear: linearModel('batch'),
  'of a fixed batch': linearModel(4),
  transposing: transposingModel(),
  quantised: quantisedModel(),
  recurrent: recurrentModel('layers', 'batch'),
  summing: summingModel('n'),
  'with a list as output': onnxModel({
    inputs: { x: value('float32', 'n', 2) },
    outputs: { y: { ...value('float32', 'n', 2), isSequence: true }, z: value('float32', 'n', 2) },
    nodes: [node('SequenceConstruct', ['x'], ['y']), node('Identity', ['x'], ['z'])],
  }),
};

const files = ['sample', 'test/fixtures'].flatMap((folder) =>
  readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((path) => /^(?!.*(?:node_modules|lfs)).*\.onnx$/.test(path))
    .map((path) => join(folder, path)),
);

describe('A native session', () => {
  let folder: string;
  let options: NativeRunOptions;

  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'native-'));
    const runtime = await nativeRuntime();
    options = new NativeRunOptions(runtime, new RunLane(runtime));
  });

  afterAll(async () => {
    options.release();
    await rm(folder, { recursive: true });
  });

  async function expectEqual(
    model: string | Uint8Array,
    feeds: Readonly<Record<string, Tensor>>,
  ): Promise<void> {
    const [native, other] = await bothOf(model);
    const answer = await native.run(feeds, other.outputNames, options);
    const read = Object.entries(feeds).map(([name, tensor]) => [name, feedOf(tensor)] as const);
    const expected = await other.run(Object.fromEntries(read));
    for (const name of other.outputNames) {
      const [{ type, dims, data }, wanted] = [answer[name]!, expected[name]!];
      expect({ type, dims, data }).toEqual({
        type: wanted.type,
        dims: [...wanted.dims],
        data: wanted.data,
      });
    }
    await native.release();
    await other.release();
  }

  it.each(Object.entries(models))(
    '[24.1] has the names, types and axes of the model %s as onnxruntime-node',
    async (_, model) => {
      const [native, other] = await bothOf(model);
      expect(native.inputMetadata).toEqual(other.inputMetadata);
      expect(native.outputMetadata).toEqual(other.outputMetadata);
      await native.release();
      await other.release();
    },
  );

  it.each(files)('[24.1] has the names, types and axes of %s as onnxruntime-node', async (path) => {
    const [native, other] = await bothOf(path);
    expect(native.inputMetadata).toEqual(other.inputMetadata);
    expect(native.outputMetadata).toEqual(other.outputMetadata);
    await native.release();
    await other.release();
  });

  it.each(Object.keys(tensors))('[24.1] returns tensors of %s unchanged', async (type) => {
    const x = tensors[type]!;
    await expectEqual(echoModel({ x: value(type as never, 'a', 'b') }), { x });
  });

  it.each(Object.keys(tensors))(
    '[24.1] returns scalars of %s, and tensors without elements',
    async (type) => {
      const { data } = tensors[type]!;
      const scalar = new Tensor(type as never, data.slice(0, 1) as never, []);
      const empty = new Tensor(type as never, data.slice(0, 0) as never, [0, 3]);
      await expectEqual(echoModel({ x: value(type as never) }), { x: scalar });
      await expectEqual(echoModel({ x: value(type as never, 'a', 'b') }), { x: empty });
    },
  );

  it('[24.1] has outputs of other shapes than the file says', async () => {
    const shape = value('float32', 'a', 'b');
    const model = onnxModel({
      inputs: { x: shape },
      outputs: { y: shape },
      nodes: [node('Transpose', ['x'], ['y'])],
    });
    const native = await openNativeSession(model, {});
    for (const [rows, columns] of [
      [2, 3],
      [2, 2],
      [5, 1],
    ] as const) {
      const data = Float32Array.from({ length: rows * columns }, (_, i) => i);
      const { y } = await native.run(
        { x: new Tensor('float32', data, [rows, columns]) },
        ['y'],
        options,
      );
      expect(y!.dims).toEqual([columns, rows]);
      const turned = Array.from(data, (_, i) => data[(i % rows) * columns + Math.floor(i / rows)]);
      expect([...y!.data]).toEqual(turned);
    }
    await native.release();
  });

  it('[24.1] [24.5] refuses tensors of bfloat16 in the words of onnxruntime-node', async () => {
    const [FLOAT16, BFLOAT16] = [10, 16];
    const model = onnxModel({
      inputs: { x: value('float32', 'n', 2) },
      outputs: { y: value('float16', 'n', 2) },
      nodes: [node('Cast', ['x'], ['y'], { to: BFLOAT16 })],
    });
    // The output's type, which the writer doesn't know, after the tag of its field.
    model[model.findLastIndex((byte, at) => byte === FLOAT16 && model[at - 1] === 8)] = BFLOAT16;
    const words = 'Unsupported data type: 16';
    await expect(openNativeSession(model, {})).rejects.toThrow(words);
    await expect(InferenceSession.create(model)).rejects.toThrow(words);
  });

  it('[24.1] runs graphs within graphs', async () => {
    const x = new Tensor('float32', Float32Array.of(1, 2, 3, 4), [1, 4]);
    await expectEqual(nestedModel(20), { x });
  });

  it('[24.1] reads external data, and models from bytes', async () => {
    await writeFile(join(folder, 'weights'), Buffer.from(Float32Array.of(2, 3).buffer));
    await writeFile(join(folder, 'model.onnx'), weightsApartModel('weights'));
    const x = new Tensor('float32', Float32Array.of(1, 2, 3, 4), [2, 2]);
    await expectEqual(join(folder, 'model.onnx'), { x });
    const digits = readFileSync('sample/01-digits/model/digits.onnx');
    const image = new Tensor('float32', Float32Array.from({ length: 2 * 784 }, Math.sin), [2, 784]);
    await expectEqual(new Uint8Array(digits), { image });
  });
});

async function bothOf(
  model: string | Uint8Array,
): Promise<[native: NativeSession, node: InferenceSession]> {
  return [await openNativeSession(model, {}), await InferenceSession.create(model as string)];
}

import { describe, expect, it } from '@jest/globals';
import { Batch, Tensor } from 'nestjs-serving';
import { echoModel, value } from '../../fixtures/models/models.js';
import {
  type ElementType,
  elementTypes,
  node,
  onnxModel,
} from '../../fixtures/models/onnx-writer.js';
import { floats, sixOfEachType } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { worker } from '../../fixtures/partitions/worker.js';

/** The types that the writer's ONNX version has numbers for. */
const inModels = sixOfEachType.filter(({ type }) => type in elementTypes);

const bits = (...values: number[]): Uint16Array => Uint16Array.from(values);

const typesOf = (tensor: Tensor): ElementType => tensor.type as ElementType;

describe('Tensors of every element type', () => {
  const serve = useServings();

  it.each(
    inModels.flatMap((six) => [
      { six, type: six.type, isolation: 'thread' as const },
      { six, type: six.type, isolation: 'none' as const },
    ]),
  )(
    '[1.7] Tensors run through a model, in batches and split over them: $type, isolation $isolation',
    async ({ six, isolation }) => {
      const x = value(typesOf(six), 'batch');
      const model = echoModel({ x });
      const serving = await serve({
        name: 'echo',
        model: { file: model, isolation },
        batchSize: 4,
      });
      const slices = [six, six].map((each) => Batch.concatenate([{ x: each }]));

      const replies = await Promise.all(
        [...slices, slices[0]!.slice(1, 3)].map((rows) => serving.batchedRun(rows)),
      );

      expect(replies).toEqual([{ same_x: six }, { same_x: six }, { same_x: partOf(six, 1, 3) }]);
    },
  );

  it.each(sixOfEachType)('[1.7] Tensors run through the thread of a module: $type', async (six) => {
    const serving = await serve({ name: 'echo', model: { useFile: worker('echo') }, batchSize: 4 });

    expect(await Promise.all([six, six].map((rows) => serving.batchedRun(rows)))).toEqual([
      six,
      six,
    ]);
  });

  it.each([
    [
      'NaN, infinities, zeros of both signs and the smallest number',
      floats([6], [NaN, Infinity, -Infinity, -0, 0, 2 ** -149]),
    ],
    ['the largest and least integers', new Tensor('int64', [2n ** 63n - 1n, -(2n ** 63n)], [2])],
    ['the largest unsigned integer', new Tensor('uint64', [2n ** 64n - 1n], [1])],
    [
      'empty, long and foreign strings',
      new Tensor('string', ['', ' ', 'ß'.repeat(100_000), '𝄞 日本', 'a\nb'], [5]),
    ],
  ])('[1.7] Tensors keep their extreme values: %s', async (_, x) => {
    const serving = await serve<{ same_x: Tensor }>({
      name: 'echo',
      model: echoModel({ x: value(typesOf(x), 'batch') }),
    });

    const { same_x: reply } = await serving.batchedRun({ x });

    expect([...reply.data].map((element, i) => Object.is(element, x.data[i]))).toEqual(
      [...x.data].map(() => true),
    );
  });

  it('[1.7] [1.8] Strings are padded up to a fixed batch', async () => {
    const model = echoModel({ x: value('string', 3) });
    const serving = await serve({
      name: 'echo',
      model: { file: model, inputs: { x: { batchAxis: 0 } } },
    });

    expect(await serving.batchedRun({ x: new Tensor('string', ['a'], [1]) })).toEqual({
      same_x: new Tensor('string', ['a'], [1]),
    });
  });

  describe.each(['thread', 'process', 'none'] as const)(
    'of half floats, with isolation %s',
    (isolation) => {
      const half = { model: { file: echoModel({ x: value('float16', 'batch', 2) }), isolation } };
      const [one, two, three] = [0x3c00, 0x4000, 0x4200];
      /** The array class of half floats. Node 24 is the first version with one. */
      const halves =
        (globalThis as { Float16Array?: new (buffer: ArrayBufferLike) => Uint16Array })
          .Float16Array ?? Uint16Array;
      const tensor = (...values: number[]): Tensor => {
        const data = bits(...values);
        return new Tensor('float16', new halves(data.buffer), [values.length / 2, 2]);
      };

      it('[W9] float16 tensors run through a model, given as bits or as numbers', async () => {
        const serving = await serve<{ same_x: Tensor }>({ name: 'half', ...half });
        const inputs = [new Tensor('float16', bits(one, two), [1, 2]), tensor(three, one)];

        const replies = await Promise.all(inputs.map((x) => serving.batchedRun({ x })));

        expect(replies).toEqual([{ same_x: tensor(one, two) }, { same_x: tensor(three, one) }]);
        expect(replies[0]!.same_x.data).toBeInstanceOf(halves);
        expect(await serving.run({ x: inputs[0] })).toEqual(replies[0]);
      });

      it('[W9] float16 tensors are joined, padded and split', async () => {
        const serving = await serve({ name: 'half', ...half, batchSize: [4] });

        const replies = await Promise.all([
          serving.batchedRun({ x: tensor(one, two, two, three, three, one) }),
          serving.batchedRun({ x: tensor(two, two, three, three) }),
        ]);

        expect(replies).toEqual([
          { same_x: tensor(one, two, two, three, three, one) },
          { same_x: tensor(two, two, three, three) },
        ]);
      });
    },
  );

  it.each([
    ['uint4', 21],
    ['int4', 22],
  ])(
    '[24.14] An output of %s is refused at the start, or left out by fetches',
    async (type, number) => {
      const file = modelWithOutputOf(number);

      const starting = serve({ name: 'both', model: file });
      await expect(starting).rejects.toThrow(
        `The output "q" has elements of ${type}, which onnxruntime-node cannot pass; cast them in ` +
          'the model. Name the outputs to return: fetches: [...]',
      );

      const one = await serve({ name: 'one', model: { file, fetches: ['y'] } });
      expect(await one.batchedRun({ x: floats([1], [2]) })).toEqual({ y: floats([1], [-2]) });
    },
  );

  it('[24.14] The error for a type that JavaScript lacks says what to do', async () => {
    const file = modelWithOutputOf(16);
    await expect(serve({ name: 'brain', model: { file, fetches: ['y'] } })).rejects.toThrow(
      'Unsupported data type: 16, of an input or output (16 is bfloat16); cast it in the model',
    );
  });

  it('[1.7] Tensors may have inner axes of length 0', async () => {
    const serving = await serve({
      name: 'echo',
      model: echoModel({ x: value('float32', 'batch', 'n') }),
    });

    expect(await serving.batchedRun({ x: floats([2, 0], []) })).toEqual({
      same_x: floats([2, 0], []),
    });
  });
});

/** `y = -x`, and x as `q` of a type with this number, which the writer's version of ONNX lacks. */
function modelWithOutputOf(number: number): Uint8Array {
  const x = value('float32', 'batch');
  const { uint64 } = elementTypes;
  const model = onnxModel({
    inputs: { x },
    outputs: { y: x, q: value('uint64', 'batch') },
    nodes: [node('Neg', ['x'], ['y']), node('Cast', ['x'], ['q'], { to: number })],
  });
  const [IR_VERSION, OPSET] = [1, model.length - 1];
  model[IR_VERSION] = 10;
  model[OPSET] = 21;
  // After the tag of its field.
  model[model.findLastIndex((byte, at) => byte === uint64 && model[at - 1] === 8)] = number;
  return model;
}

function partOf({ type, data }: Tensor, start: number, end: number): Tensor {
  return new Tensor(type, data.slice(start, end), [end - start]);
}

import { describe, expect, it } from '@jest/globals';
import { defineServing, type LocalServing, Tensor } from 'nestjs-serving';
import type {
  InferenceReply,
  InferenceRequest,
  ParameterValue,
} from '../../../lib/extensions/inference-protocol/server/inference-request.js';
import {
  configOf,
  metadataOf,
} from '../../../lib/extensions/inference-protocol/server/inference-server.js';
import { collect } from '../../fixtures/async/collect.js';
import { failureOf } from '../../fixtures/async/failure-of.js';
import { inferenceOf, modelsOf, requestOf } from '../../fixtures/serving/inference-core.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { floats } from '../../fixtures/values/tensors.js';

const start = useServings();

const strings = (...texts: string[]): Tensor => new Tensor('string', texts, [texts.length]);
const valuesOf = ({ outputs }: InferenceReply): unknown =>
  Object.fromEntries(Array.from(outputs, ([name, { dims, data }]) => [name, [dims, ...data]]));

const upper = () =>
  start<string>(
    defineServing({
      name: 'upper',
      model: { useFactory: () => (texts: string[]) => texts.map((text) => text.toUpperCase()) },
    }),
  );

/** Each row of `x` plus `by`, which the rows of a request share, and the number of its batch's rows. */
const adder = (): Promise<LocalServing> =>
  start(
    defineServing({
      name: 'adder',
      batchTimeout: 20,
      model: {
        useFactory:
          () =>
          ({ x }: { x: Tensor }) => ({
            sum: new Tensor(
              'float32',
              (x.data as Float32Array).map((each) => each + 1),
              x.dims,
            ),
            rows: new Tensor('int32', new Int32Array(x.dims[0]!).fill(x.dims[0]!), [x.dims[0]!, 1]),
          }),
        signature: { template: { x: { type: 'float32', shape: [null, 2] } } },
      },
    }),
  );

describe('Inference', () => {
  it('[18.2] A request of several rows is one call, which shares its batch with other requests', async () => {
    const core = inferenceOf([await adder()]);

    const replies = await Promise.all([
      core.infer(requestOf('adder', { x: floats([2, 2], [1, 2, 3, 4]) }), {}),
      core.infer(requestOf('adder', { x: floats([1, 2], [5, 6]) }), {}),
    ]);

    expect(replies.map(valuesOf)).toEqual([
      { sum: [[2, 2], 2, 3, 4, 5], rows: [[2, 1], 3, 3] },
      { sum: [[1, 2], 6, 7], rows: [[1, 1], 3] },
    ]);
  });

  it('[18.2] The outputs of a reply are those that the request names, in its order', async () => {
    const core = inferenceOf([await adder()]);
    const request = requestOf('adder', { x: floats([1, 2], [1, 2]) });
    const named = (...names: string[]) => ({
      ...request,
      outputs: new Map(names.map((name) => [name, new Map()])),
    });

    const { outputs } = await core.infer(named('rows', 'sum'), {});
    expect([...outputs.keys()]).toEqual(['rows', 'sum']);
    await expect(core.infer(named('nix'), {})).rejects.toThrow(
      'Model "adder" has no output "nix"; it has rows, sum',
    );
  });

  it.each([
    ['is missing', {}, 'the input "x" is missing'],
    ['is unknown', { x: floats([1, 2], [1, 2]), y: floats([1], [1]) }, 'it has no input "y"'],
    [
      'has another type',
      { x: new Tensor('float64', [1, 2], [1, 2]) },
      'the input "x" is FP64 and must be FP32',
    ],
    [
      'has another shape',
      { x: floats([1, 3], [1, 2, 3]) },
      'the input "x" has the shape [1, 3] and must have [-1, 2]',
    ],
    ['has another rank', { x: floats([2], [1, 2]) }, 'the input "x" has the shape [2]'],
  ])('[18.4] A request is refused whose tensor %s', async (_, inputs, message) => {
    const core = inferenceOf([await adder()]);

    await expect(core.infer(requestOf('adder', inputs as never), {})).rejects.toMatchObject({
      name: 'InvalidInputError',
      message: expect.stringContaining(message),
    });
  });

  it('[18.4] Inputs with different numbers of rows are refused by their names', async () => {
    const serving = await start(
      defineServing({ name: 'pairs', model: { useFactory: () => (rows: unknown[]) => rows } }),
    );
    const core = inferenceOf([serving], {
      servings: [{ serving: 'pairs', inputs: { a: 'BYTES', b: 'INT32' }, outputs: { a: 'BYTES' } }],
    });
    const b = new Tensor('int32', [1], [1]);

    await expect(core.infer(requestOf('pairs', { a: strings('x', 'y'), b }), {})).rejects.toThrow(
      'the input "b" has 1 rows and the input "a" has 2',
    );
  });

  it('[18.6] Without a signature, each element of one input is a row in JSON', async () => {
    const serving = await start(
      defineServing({
        name: 'sizes',
        model: {
          useFactory: () => (rows: { list: unknown[]; big?: bigint }[]) =>
            rows.map(({ list, big }) => ({ size: list.length, big })),
        },
      }),
    );
    const core = inferenceOf([serving]);
    const input = strings('{"list":[1,2],"big":{"$bigint":"9007199254740993"}}', '{"list":[]}');

    expect(valuesOf(await core.infer(requestOf('sizes', { input }), {}))).toEqual({
      output: [[2], '{"size":2,"big":{"$bigint":"9007199254740993"}}', '{"size":0}'],
    });
    await expect(core.infer(requestOf('sizes', { input: strings('{}', 'x') }), {})).rejects.toThrow(
      '"input.1" in the request is not JSON',
    );
    await expect(
      core.infer(requestOf('sizes', { input: strings('['.repeat(100)) }), {}),
    ).rejects.toThrow('deeper than 64 levels');
  });

  it('[18.6] With the content type "str", of the request or the input, each element is a text', async () => {
    const core = inferenceOf([await upper()]);
    const request = requestOf('upper', { input: strings('a', 'ß') });

    const ofRequest = { ...request, parameters: new Map([['content_type', 'str']]) };
    const ofInput = {
      ...request,
      inputParameters: new Map([['input', new Map([['content_type', 'str']])]]),
    };
    for (const each of [ofRequest, ofInput]) {
      expect(valuesOf(await core.infer(each, {}))).toEqual({ output: [[2], 'A', 'SS'] });
    }
  });

  it('[18.6] Declared inputs with one element per row make rows, and declared outputs tensors of their results', async () => {
    const serving = await start(
      defineServing({
        name: 'people',
        model: {
          useFactory: () => (rows: { name: string; age: bigint; isIn: boolean; half: number }[]) =>
            rows.map(({ name, age, isIn, half }) => ({
              greeting: `${name} ${age} ${isIn} ${half}`,
              vector: Float32Array.of(Number(age), 0.5),
              next: age + 1n,
            })),
        },
      }),
    );
    const core = inferenceOf([serving], {
      servings: [
        {
          serving: 'people',
          model: 'crowd',
          inputs: { name: 'BYTES', age: 'INT64', isIn: 'BOOL', half: 'FP16' },
          outputs: { greeting: 'BYTES', vector: 'FP32[-1]', next: 'INT64' },
        },
      ],
    });

    const reply = await core.infer(
      requestOf('crowd', {
        name: strings('Ada', 'Bo'),
        age: new Tensor('int64', [2n ** 60n, 7n], [2]),
        isIn: new Tensor('bool', [true, false], [2]),
        half: new Tensor('float16', Uint16Array.of(0x3c00, 0x3800), [2]),
      }),
      {},
    );

    expect(valuesOf(reply)).toEqual({
      greeting: [[2], `Ada ${2n ** 60n} true 1`, 'Bo 7 false 0.5'],
      vector: [[2, 2], 2 ** 60, 0.5, 7, 0.5],
      next: [[2], 2n ** 60n + 1n, 8n],
    });
  });

  it('[18.6] A serving that shapes its calls gets one for each row, and the others end with the first that fails', async () => {
    const serving = await start(
      defineServing({
        name: 'shaped',
        batchSize: 2,
        batchTimeout: 1_000_000,
        preprocess(text: string) {
          if (text === '') {
            throw new Error('empty');
          }
          return { batch: text };
        },
        model: { useFactory: () => (texts: string[]) => texts.map((text) => text.length) },
        postprocess: (length: number) => ({ length }),
      }),
    );
    const core = inferenceOf([serving]);

    expect(
      valuesOf(await core.infer(requestOf('shaped', { input: strings('"ab"', '"c"') }), {})),
    ).toEqual({ output: [[2], '{"length":2}', '{"length":1}'] });
    await expect(
      core.infer(requestOf('shaped', { input: strings('"waits"', '""') }), {}),
    ).rejects.toThrow('empty');
    expect(serving.queued).toBe(0);
  });

  it('[18.6] A result that is not what an output declares is an error of the application', async () => {
    const core = inferenceOf([await upper()], {
      servings: [{ serving: 'upper', inputs: { text: 'BYTES' }, outputs: { length: 'INT32' } }],
    });

    await expect(core.infer(requestOf('upper', { text: strings('a') }), {})).rejects.toMatchObject({
      name: 'InvalidOutputError',
      message: expect.stringContaining('The reply of model "upper" cannot be sent'),
    });
  });

  describe.each([
    [
      'a tensor of another type',
      () => ({
        a: new Tensor('int32', new Int32Array(4), [2, 2]),
        b: floats([2, 2], [1, 2, 3, 4]),
      }),
      '"a" is INT32, and FP32 is declared',
    ],
    [
      'a tensor of another shape',
      () => ({ a: floats([2, 3], [1, 2, 3, 4, 5, 6]), b: floats([2, 2], [1, 2, 3, 4]) }),
      '"a" has the shape [2, 3], and [-1, 2] is declared',
    ],
    [
      'one tensor for two outputs',
      () => floats([2, 2], [1, 2, 3, 4]),
      'it is one tensor, and has no "b"',
    ],
    [
      'rows of which one has elements of another type',
      () => [
        { a: [1, 2], b: [3, 4] },
        { a: new Tensor('float16', Uint16Array.of(0x3c00, 0x4000), [2]), b: [3, 4] },
      ],
      '"a" is FP16, and FP32 is declared',
    ],
    [
      'rows whose lengths only agree in sum',
      () => [
        { a: [1], b: [1, 2] },
        { a: [1, 2, 3], b: [3, 4] },
      ],
      'row 0 of "a" has 1 elements, and [2] is declared',
    ],
    [
      'rows of typed arrays whose lengths only agree in sum',
      () => [
        { a: Float32Array.of(1, 2), b: Float32Array.of(1, 2, 3) },
        { a: Float32Array.of(1, 2), b: Float32Array.of(1) },
      ],
      'row 0 of "b" has 3 elements, and [2] is declared',
    ],
  ])('A model that answers with %s', (_, answer: () => unknown, message) => {
    it('[18.6] fails the request, which names the output', async () => {
      const serving = await start(
        defineServing({ name: 'two', model: { useFactory: () => () => answer() as unknown[] } }),
      );
      const core = inferenceOf([serving], {
        servings: [
          { serving: 'two', inputs: { x: 'BYTES' }, outputs: { a: 'FP32[2]', b: 'FP32[2]' } },
        ],
      });

      await expect(
        core.infer(requestOf('two', { x: strings('1', '2') }), {}),
      ).rejects.toMatchObject({
        name: 'InvalidOutputError',
        message: expect.stringContaining(message),
      });
    });
  });

  it('[18.6] Rows of different lengths in an output of any size are refused, and not joined', async () => {
    const lengths = [[1, 2], [3], [4, 5, 6]];
    const serving = await start(
      defineServing({ name: 'ragged', model: { useFactory: () => () => lengths } }),
    );
    const core = inferenceOf([serving], {
      servings: [{ serving: 'ragged', inputs: { x: 'BYTES' }, outputs: { y: 'FP32[-1]' } }],
    });

    await expect(
      core.infer(requestOf('ragged', { x: strings('1', '2', '3') }), {}),
    ).rejects.toMatchObject({
      name: 'InvalidOutputError',
      message: expect.stringContaining('row 1 of "y" has 1 elements, and the first row has 2'),
    });
  });

  it('[18.1] Metadata and configuration follow the signature, with or without the axis of rows', async () => {
    const models = modelsOf([await adder(), await upper()], {
      servings: [
        'adder',
        { serving: 'upper', inputs: { text: 'BYTES' }, outputs: { up: 'BYTES' } },
      ],
    });

    expect(metadataOf(models.find('adder', '1'))).toEqual({
      name: 'adder',
      versions: ['1'],
      platform: 'nestjs_serving',
      inputs: [{ name: 'x', datatype: 'FP32', shape: [-1, 2] }],
      outputs: [],
    });
    expect(configOf(models.find('adder'))).toMatchObject({
      max_batch_size: 32,
      input: [{ name: 'x', data_type: 'TYPE_FP32', dims: [2] }],
      dynamic_batching: { preferred_batch_size: [], max_queue_delay_microseconds: 20_000 },
      model_transaction_policy: { decoupled: false },
    });
    expect(configOf(models.find('upper'))).toMatchObject({
      max_batch_size: 0,
      input: [{ name: 'text', data_type: 'TYPE_STRING', dims: [-1] }],
    });
  });

  it.each([
    ['nix', undefined, 'There is no model "nix"; offered are: upper'],
    ['upper', '2', 'Model "upper" has no version "2"; it has 1'],
  ])('[18.1] An unknown model or version is refused: %s %s', async (name, version, message) => {
    const core = inferenceOf([await upper()]);
    const request = { ...requestOf(name, { input: strings('1') }), version };

    await expect(core.infer(request, {})).rejects.toMatchObject({
      code: 'SERVING_UNKNOWN',
      message,
    });
  });

  it('[18.1] A reply has the version and the id of its request, and the chosen version without one', async () => {
    const core = inferenceOf([await upper()]);
    const request = requestOf('upper', { input: strings('"a"') });

    await expect(core.infer({ ...request, version: '', id: '' }, {})).resolves.toMatchObject({
      model: 'upper',
      version: '1',
      id: undefined,
    });
    await expect(core.infer({ ...request, version: '1', id: 'x' }, {})).resolves.toMatchObject({
      id: 'x',
    });
  });

  it('[18.9] The replies of a generator come one by one, and then a final one', async () => {
    const serving = await start(
      defineServing({
        name: 'letters',
        model: {
          useFactory: () =>
            function* (rows: string[]) {
              for (let i = 0; i < 2; i++) {
                yield rows.map((row) => row[i]);
              }
            },
        },
      }),
    );
    const core = inferenceOf([serving], {
      servings: [
        {
          serving: 'letters',
          inputs: { text: 'BYTES' },
          outputs: { letter: 'BYTES' },
          decoupled: true,
        },
      ],
    });
    const request = { ...requestOf('letters', { text: strings('ab', 'cd') }), id: '7' };

    const replies = await collect(core.stream(request, {}));
    expect(replies.map((reply) => [valuesOf(reply), reply.id, reply.isFinal])).toEqual([
      [{ letter: [[2], 'a', 'c'] }, '7', false],
      [{ letter: [[2], 'b', 'd'] }, '7', false],
      [{}, '7', true],
    ]);
    await expect(core.infer(request, {})).rejects.toMatchObject({ status: 501 });
  });

  it('[18.9] A list that a generator behind preprocess yields is the reply to one row', async () => {
    const serving = await start(
      defineServing({
        name: 'pairs',
        preprocess: (text: string) => ({ batch: text }),
        model: {
          useFactory: () =>
            function* (rows: string[]) {
              yield rows.map(({ length }) => [length, length + 1]);
            },
        },
      }),
    );
    const core = inferenceOf([serving], {
      servings: [
        {
          serving: 'pairs',
          inputs: { text: 'BYTES' },
          outputs: { pair: 'FP32[2]' },
          decoupled: true,
        },
      ],
    });

    const replies = await collect(core.stream(requestOf('pairs', { text: strings('ab') }), {}));
    expect(replies.map(valuesOf)).toEqual([{ pair: [[1, 2], 2, 3] }, {}]);
  });

  it('[18.9] Any other model has one reply in a stream, which is final', async () => {
    const core = inferenceOf([await upper()]);

    const replies = await collect(core.stream(requestOf('upper', { input: strings('"a"') }), {}));
    expect(replies.map(({ isFinal }) => isFinal)).toEqual([true]);
  });

  it.each([
    [
      'of an input',
      { inputParameters: new Map([['input', new Map([['shared_memory_region', 'r']])]]) },
    ],
    ['of an output', { outputs: new Map([['output', new Map([['shared_memory_region', 'r']])]]) }],
    ['classification', { outputs: new Map([['output', new Map([['classification', 3]])]]) }],
  ])('[18.5] Extensions that are not supported are answered with 501: %s', async (_, more) => {
    const core = inferenceOf([await upper()]);
    const request = { ...requestOf('upper', { input: strings('"a"') }), ...more };

    await expect(core.infer(request, {})).rejects.toMatchObject({ status: 501 });
  });

  it.each<[string, ParameterValue, Partial<InferenceRequest>]>([
    ['binary_data', 'true', { outputs: new Map([['output', new Map([['binary_data', 'true']])]]) }],
    ['binary_data_output', 1, { parameters: new Map([['binary_data_output', 1]]) }],
    [
      'classification',
      'two',
      { outputs: new Map([['output', new Map([['classification', 'two']])]]) },
    ],
  ])('[18.4] The parameter %s must not be %s', async (name, value, more) => {
    const core = inferenceOf([await upper()]);
    const request = { ...requestOf('upper', { input: strings('"a"') }), ...more };

    await expect(core.infer(request, {})).rejects.toMatchObject({
      name: 'InvalidInputError',
      message: expect.stringContaining(`The parameter "${name}" is ${JSON.stringify(value)}`),
    });
  });

  it('[18.11] An unloaded model is refused until it is loaded', async () => {
    const models = modelsOf([await upper()]);
    models.unload('upper');

    expect(models.find('upper').isReady).toBe(false);
    expect(() => models.toRun('upper')).toThrow('Model "upper" was unloaded');
    await expect(models.load('upper', ['config'])).rejects.toThrow('"config" is not supported');
    await models.load('upper', []);
    expect(models.toRun('upper').isReady).toBe(true);
  });

  it('[18.7] A call that cannot be made rejects before the serving is called', async () => {
    const core = inferenceOf([await upper()]);
    const request = requestOf('upper', { input: strings('"a"') });
    const gone = AbortSignal.abort(new Error('left'));

    await expect(failureOf(core.infer(request, { signal: gone }))).resolves.toMatchObject({
      message: 'left',
    });
    await expect(
      failureOf(core.infer(request, { deadline: Date.now() - 1 })),
    ).resolves.toMatchObject({ code: 'SERVING_DEADLINE_EXCEEDED' });
  });

  it('[P11] A text of the shape [N, 1] fits a declared column, with one element per row', async () => {
    const core = inferenceOf([await upper()], {
      servings: [{ serving: 'upper', inputs: { text: 'BYTES' }, outputs: { up: 'BYTES' } }],
    });
    const text = new Tensor('string', ['a', 'b'], [2, 1]);

    expect(valuesOf(await core.infer(requestOf('upper', { text }), {}))).toEqual({
      up: [[2], 'A', 'B'],
    });
    const wide = new Tensor('string', ['a', 'b'], [1, 2]);
    await expect(core.infer(requestOf('upper', { text: wide }), {})).rejects.toThrow(
      'has the shape [1, 2] and must have [-1], -1 being any size',
    );
  });

  it('[P11] Functions get and return binary elements of BYTES as Uint8Arrays, and models and JSON none', async () => {
    const seen: unknown[] = [];
    const reverse = await start(
      defineServing({
        name: 'reverse',
        model: {
          useFactory: () => (rows: (string | Uint8Array)[]) => {
            seen.push(...rows);
            return rows.map((row) => (typeof row === 'string' ? row : row.toReversed()));
          },
        },
      }),
    );
    const declared = { inputs: { bytes: 'BYTES' }, outputs: { back: 'BYTES' } };
    const tensors = { inputs: { bytes: 'BYTES', x: 'FP32[1]' }, outputs: { back: 'BYTES' } };
    const core = inferenceOf([reverse], {
      servings: [
        { serving: 'reverse', ...declared },
        { serving: 'reverse', model: 'json' },
        { serving: 'reverse', model: 'tensors', ...tensors },
      ],
    });
    const bytes = new Tensor('string', [Uint8Array.of(0xff, 1), 'a'] as string[], [2]);

    expect(valuesOf(await core.infer(requestOf('reverse', { bytes }), {}))).toEqual({
      back: [[2], Uint8Array.of(1, 0xff), 'a'],
    });
    expect(seen).toEqual([Uint8Array.of(0xff, 1), 'a']);
    for (const request of [
      requestOf('json', { input: bytes }),
      requestOf('tensors', { bytes, x: floats([2, 1], [1, 2]) }),
    ]) {
      await expect(core.infer(request, {})).rejects.toMatchObject({
        code: 'SERVING_INVALID_INPUT',
        message: expect.stringContaining('is not UTF-8'),
      });
    }
  });
});

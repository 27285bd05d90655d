import { describe, expect, it } from '@jest/globals';
import type { InferenceSession } from 'onnxruntime-common';
import { InvalidServingError, type Tensor } from 'nestjs-serving';
import {
  type DeclaredAxes,
  axesOf,
  describePort,
  signatureOf,
} from '../../../lib/core/partitions/model/model-signature.js';

type Shapes = Readonly<Record<string, readonly (number | string)[]>>;
type Axes = Readonly<Record<string, number | null>>;

const metadataOf = (shapes: Shapes): InferenceSession.TensorValueMetadata[] =>
  Object.entries(shapes).map(([name, shape]) => ({ name, isTensor: true, type: 'float32', shape }));

function read(
  inputs: Shapes,
  outputs: Shapes = {},
  declared: { readonly inputs?: DeclaredAxes; readonly outputs?: DeclaredAxes } = {},
): ReturnType<typeof signatureOf> {
  const session = { inputMetadata: metadataOf(inputs), outputMetadata: metadataOf(outputs) };
  return signatureOf(session, { inputs: {}, outputs: {}, ...declared });
}

describe('signatureOf', () => {
  it.each<[string, Shapes, Axes, number | undefined]>([
    ['a dynamic axis 0', { x: ['batch', 784] }, { x: 0 }, undefined],
    [
      'further dynamic axes',
      { ids: ['batch', 'length'], mask: ['batch', 'length'] },
      { ids: 0, mask: 0 },
      undefined,
    ],
    ['unnamed dynamic axes', { x: ['', ''], state: [2, '', 128] }, { x: 0, state: 1 }, undefined],
    [
      'states of one layer, beside rows of that name',
      { x: ['n', 9], state: [1, 'n', 64] },
      { x: 0, state: 1 },
      undefined,
    ],
    [
      'rows of one name wherever they lie',
      { x: ['n', 9], past: [2, 'past', 'n'] },
      { x: 0, past: 2 },
      undefined,
    ],
    ['a scalar', { x: ['batch'], rate: [] }, { x: 0, rate: null }, undefined],
    [
      'a fixed shape in a dynamic model',
      { x: ['batch', 3], table: [5, 3] },
      { x: 0, table: null },
      undefined,
    ],
    ['a fixed model of one row', { x: [1, 3], rate: [] }, { x: 0, rate: null }, 1],
    ['none in a model of scalars', { rate: [], scale: [] }, { rate: null, scale: null }, undefined],
    ['a model of one row of dynamic length', { audio: [1, 'samples'] }, { audio: 0 }, 1],
  ])('[1.8] The batch axes of a model are read: %s', (_, inputs, axes, fixedBatch) => {
    const signature = read(inputs);

    expect(
      Object.fromEntries(signature.inputs.map(({ name, batchAxis }) => [name, batchAxis])),
    ).toEqual(axes);
    expect(signature.fixedBatch).toBe(fixedBatch);
  });

  it.each<[string, readonly (number | string)[], number | null]>([
    ['has a name of the rows', [1, 'n', 64], 1],
    ['has one row and other dynamic axes', [1, 'length', 33], 0],
    ['has a fixed shape in a model all of whose outputs are fixed', [1, 10], 0],
    ['is a scalar', [], null],
  ])('[1.8] The batch axis is read from an output that %s', (_, shape, axis) => {
    expect(read({ x: ['n', 'length'] }, { y: shape }).outputs[0]!.batchAxis).toBe(axis);
  });

  it('[1.8] Declared batch axes take precedence', () => {
    const inputs = { x: { batchAxis: 1 }, bias: { batchAxis: null } };

    const signature = read(
      { x: ['time', 'n', 3], bias: ['n'] },
      { y: ['n', 3] },
      { inputs, outputs: { y: { batchAxis: 1 } } },
    );

    expect([...signature.inputs, ...signature.outputs].map(({ batchAxis }) => batchAxis)).toEqual([
      1,
      null,
      1,
    ]);
  });

  it.each<[string, Parameters<typeof read>, string]>([
    ['there is no input', [{}], 'The model has no inputs'],
    [
      'inputs disagree on the rows',
      [{ x: [1, 9], state: [2, 1, 64] }, {}, { inputs: { state: { batchAxis: 0 } } }],
      'The inputs of the model disagree on the number of rows: x: float32[1, 9] on axis 0, state: float32[2, 1, 64] on axis 0; declare their axes',
    ],
    [
      'one input is fixed to one row',
      [{ x: ['', 9], state: [1, '', 64] }],
      'disagree on the number of rows',
    ],
    [
      'a declared input is missing',
      [{ x: ['n'] }, {}, { inputs: { y: { batchAxis: 0 } } }],
      'no input "y"; it has x',
    ],
    [
      'a declared output is missing',
      [{ x: ['n'] }, { y: ['n'] }, { outputs: { x: { batchAxis: 0 } } }],
      'no output "x"',
    ],
    [
      'a declared axis is too high',
      [{ x: ['n'] }, {}, { inputs: { x: { batchAxis: 1 } } }],
      'has no axis 1; batchAxis can be 0 to 0',
    ],
    [
      'a declared axis is negative',
      [{ x: ['n'] }, {}, { inputs: { x: { batchAxis: -1 } } }],
      'has no axis -1',
    ],
    [
      'a declared axis is no whole number',
      [{ x: ['n', 3] }, {}, { inputs: { x: { batchAxis: 0.5 } } }],
      'has no axis 0.5',
    ],
  ])('[1.8] [1.9] A model is refused when %s', (_, args, message) => {
    expect(() => read(...args)).toThrow(InvalidServingError);
    expect(() => read(...args)).toThrow(message);
  });

  it.each<[string, Shapes]>([
    ['has one fixed axis', { x: [3] }],
    ['is an image of fixed size', { x: [8, 8] }],
    ['is an image of any size with its channels in front', { x: [3, 'height', 'width'] }],
    ['has only its last axis dynamic', { x: [2, 'n'] }],
    ['has two axes of one dynamic length, as an adjacency matrix', { x: ['nodes', 'nodes'] }],
    [
      'starts with a dynamic axis of another name than the others',
      { x: ['batch', 9], words: ['words', 4] },
    ],
    [
      'has the first axis of another input behind a dynamic first axis',
      { x: ['batch', 'words'], table: ['words', 4] },
    ],
    ['has a dynamic axis of another name than the rows', { x: ['n', 9], past: [2, 'past', 64] }],
    ['has several dynamic axes without names', { x: ['', 9], past: [2, '', '', 64] }],
  ])('[W1] A model is refused at boot, with advice, when an input %s', (_, inputs) => {
    expect(() => read(inputs)).toThrow(InvalidServingError);
    expect(() => read(inputs)).toThrow(
      /does not define which axis of the input .* Declare it: inputs: \{ \w+: \{ batchAxis: 0 \}/,
    );
  });

  it('[W1] The advice names exactly the inputs without a clear batch axis', () => {
    expect(() => read({ x: [4, 3], 'y.0': [4], rate: [] })).toThrow(
      "The model's file does not define which axis of the input x: float32[4, 3] and of y.0: float32[4] counts rows. " +
        "Declare it: inputs: { x: { batchAxis: 0 }, 'y.0': { batchAxis: 0 } } if axis 0 does",
    );
  });

  it('[W1] A declared fixed batch is accepted', () => {
    const rows = { batchAxis: 0 };

    const signature = read({ x: [4, 3], y: [4] }, { sum: [4] }, { inputs: { x: rows, y: rows } });

    expect(signature).toMatchObject({ fixedBatch: 4, outputs: [{ batchAxis: 0 }] });
  });

  it.each<[string, Parameters<typeof read>]>([
    [
      'all inputs are declared without one',
      [{ x: ['n', 3] }, { y: ['n', 3] }, { inputs: { x: { batchAxis: null } } }],
    ],
    [
      'a model of one row outputs a list of any length',
      [{ image: [1, 3, 640, 640] }, { boxes: ['found', 7] }],
    ],
    [
      'a model of one row outputs a scalar beside its row',
      [{ x: [1, 3] }, { y: [1, 3], loss: [] }],
    ],
    ['a model of one row drops its batch axis', [{ x: [1, 8] }, { scores: [3] }]],
  ])('[W1] A model has no batch axis, and each call is one run, when %s', (_, args) => {
    const { inputs, outputs, fixedBatch } = read(...args);

    expect([...inputs, ...outputs].map(({ batchAxis }) => batchAxis)).toEqual(
      [...inputs, ...outputs].map(() => null),
    );
    expect(fixedBatch).toBeUndefined();
  });

  it('[W1] A model of one row runs row by row when the outputs of the reply have rows', () => {
    const session = [{ x: [1, 3] }, { y: [1, 3], loss: [] }] as const;

    const signature = signatureOf(
      { inputMetadata: metadataOf(session[0]), outputMetadata: metadataOf(session[1]) },
      { inputs: {}, outputs: {}, fetches: ['y'] },
    );

    expect(signature).toMatchObject({
      fixedBatch: 1,
      outputs: [{ batchAxis: 0 }, { batchAxis: null }],
    });
  });

  it.each<[string, Parameters<typeof read>, string]>([
    [
      'an output is declared with rows, and no input has any',
      [
        { x: [3] },
        { y: [3] },
        { inputs: { x: { batchAxis: null } }, outputs: { y: { batchAxis: 0 } } },
      ],
      'The output y: float32[3] is declared with rows on axis 0, and no input of the model has a batch axis',
    ],
    [
      'a model takes four rows at a time and outputs one number',
      [{ x: [4, 3] }, { loss: [] }, { inputs: { x: { batchAxis: 0 } } }],
      'The model takes 4 rows at a time, and no axis of the output loss: float32[] is known to count them',
    ],
    [
      'an output compares the rows with one another',
      [{ x: ['n', 3] }, { y: ['n', 'n'] }],
      'which axis of the output y: float32[n, n]',
    ],
    [
      'an output has another dynamic axis than the rows',
      [{ x: ['n', 3] }, { y: [3, 'length'] }],
      'the output y: float32[3, length]',
    ],
  ])('[W1] A model is refused at boot when %s', (_, args, message) => {
    expect(() => read(...args)).toThrow(InvalidServingError);
    expect(() => read(...args)).toThrow(message);
  });

  it('[1.8] A model with sequences or maps as outputs is refused', () => {
    const session = {
      inputMetadata: metadataOf({ x: ['n'] }),
      outputMetadata: [{ name: 'scores', isTensor: false as const }],
    };

    expect(() => signatureOf(session, { inputs: {}, outputs: {} })).toThrow(
      'The output "scores" is no tensor',
    );
  });
});

it('[FR6] An output that is no tensor is left out if nothing fetches it', () => {
  const session = {
    inputMetadata: metadataOf({ x: ['n'] }),
    outputMetadata: [...metadataOf({ label: ['n'] }), { name: 'scores', isTensor: false as const }],
  };
  const of = (fetches: readonly string[]) =>
    signatureOf(session, { inputs: {}, outputs: {}, fetches });

  expect(of(['label']).outputs.map(({ name }) => name)).toEqual(['label']);
  expect(() => of(['scores'])).toThrow('Name the outputs to return: fetches: [...]');
});

describe('axesOf', () => {
  it('[1.8] The batch axes are listed by name', () => {
    expect(axesOf(read({ x: ['n', 3], state: [2, 'n', 3], rate: [] }).inputs)).toEqual({
      x: 0,
      state: 1,
      rate: null,
    });
  });

  it('[1.3] The batch axis of a single input applies to a bare tensor too', () => {
    expect(axesOf(read({ x: [2, 'n'] }, {}, { inputs: { x: { batchAxis: 1 } } }).inputs)).toEqual({
      x: 1,
      '': 1,
    });
  });
});

it('A port is described with a question mark for an unnamed axis', () => {
  const type: Tensor.Type = 'int64';

  expect(describePort({ name: 'ids', type, shape: ['batch', '', 3] })).toBe(
    'ids: int64[batch, ?, 3]',
  );
});

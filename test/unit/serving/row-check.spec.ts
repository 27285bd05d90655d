import { describe, expect, it, jest } from '@jest/globals';
import { createServing, InvalidServingError, Tensor } from 'nestjs-serving';
import ort from 'onnxruntime-node';
import type { ModelRunner, ServingOptions } from '../../../lib/index.js';
import { failureOf } from '../../fixtures/async/failure-of.js';
import { gainModel, quantisedModel, value } from '../../fixtures/models/models.js';
import { node, type OnnxModel, onnxModel } from '../../fixtures/models/onnx-writer.js';
import { recordWarnings } from '../../fixtures/recorded-warnings.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

type Parts = Partial<OnnxModel> & Pick<OnnxModel, 'nodes'>;

const int64 = (...data: bigint[]) =>
  ({ type: 'int64', dims: [data.length], data: BigInt64Array.from(data) }) as const;

/** Takes `x` of 3 numbers a row, and gives `y`. */
function modelOf({ nodes, ...others }: Parts): Uint8Array {
  const x = value('float32', 'batch', 3);
  return onnxModel({ inputs: { x }, outputs: { y: x }, nodes, ...others });
}

/** Each found number of the whole batch is a row of `y`. */
const findings = (axis: string) =>
  modelOf({
    outputs: { y: value('int64', axis, 2) },
    nodes: [
      node('Relu', ['x'], ['positive']),
      node('NonZero', ['positive'], ['found']),
      node('Transpose', ['found'], ['y']),
    ],
  });

/** `y = x - mean`, with one mean for the whole batch. */
const centred = (x = value('float32', 'batch', 3)) =>
  modelOf({
    inputs: { x },
    outputs: { y: x },
    nodes: [
      node('ReduceMean', ['x'], ['mean'], { axes: [0], keepdims: 1 }),
      node('Sub', ['x', 'mean'], ['y']),
    ],
  });

/** `y` is the sum of all numbers before it in its column: the second row has the first one's. */
const cumulative = modelOf({
  nodes: [node('CumSum', ['x', 'axis'], ['y'])],
  initializers: { axis: { type: 'int64', dims: [], data: BigInt64Array.of(0n) } },
});

/** The shape of one row was written into the graph. */
const reshaped = (shape: readonly bigint[], y = value('float32', 'batch', 3)) =>
  modelOf({
    outputs: { y },
    nodes: [node('Reshape', ['x', 'shape'], ['y'])],
    initializers: { shape: int64(...shape) },
  });

/** `y` is a number of the whole row, of any length. */
const pooled = (op: string) =>
  modelOf({
    inputs: { x: value('float32', 'batch', 'length') },
    outputs: { y: value('float32', 'batch', 1) },
    nodes: [node(op, ['x'], ['y'], op === 'ReduceSum' ? {} : { axes: [1] })],
    initializers: op === 'ReduceSum' ? { axes: int64(1n) } : {},
  });

const row = (...numbers: number[]) =>
  new Tensor('float32', Float32Array.from(numbers), [1, numbers.length]);

describe('When a model starts, rows run alone and together', () => {
  const starting = useServings();
  const start = async (
    file: Uint8Array,
    model: Partial<ModelRunner> = {},
    options: Partial<ServingOptions> = {},
  ) => {
    const serving = createServing({
      name: 'net',
      ...options,
      model: { isolation: 'none', file, ...model },
    });
    await starting(serving);
    return serving;
  };
  const refusal = async (...args: Parameters<typeof start>): Promise<string> => {
    const error = await failureOf(start(...args));
    expect(error).toBeInstanceOf(InvalidServingError);
    return (error as Error).message;
  };

  describe('[FR2] The start refuses a model', () => {
    it.each(['num_dets', '', 'batch'])(
      'whose output has a row for each finding, on an axis named %j',
      async (axis) => {
        expect(await refusal(findings(axis))).toMatch(
          /^Serving "net": Output "y" has the shape \[\d, 2\]; axis 0 must have the 1 row/,
        );
      },
    );

    it.each([
      ['subtracts the mean of the batch', centred()],
      ['adds up the rows before a row', cumulative],
    ])('that %s, and says how to declare one run per call', async (_, file) => {
      expect(await refusal(file)).toMatch(
        /^Serving "net": A row of the model has another answer beside other rows: alone it has \S+ in "y", and \S+ in a batch of two\. .*declare inputs: \{ x: \{ batchAxis: null \} \}, and each call is one run$/,
      );
    });

    it('with an output without rows that depends on all rows, until it is left out', async () => {
      const file = modelOf({
        outputs: { y: value('float32', 'batch', 3), mean: value('float32') },
        nodes: [
          node('Identity', ['x'], ['y']),
          node('ReduceMean', ['x'], ['mean'], { keepdims: 0 }),
        ],
      });

      expect(await refusal(file)).toMatch(
        /The output "mean" has no rows, and depends on all rows of its batch: .*leave it out with fetches/,
      );
      await start(file, { fetches: ['y'] });
    });

    it('that reads the padding of shorter rows, and says what settles it', async () => {
      const axes = { inputs: { x: { variableAxis: 1 } } };

      expect(await refusal(pooled('ReduceMean'), axes)).toMatch(
        /Padding changes the model's answers: a row has \S+ in "y" alone, and \S+ when it is padded .*Pad x with what the model ignores \(padWith\).*declare no variableAxis/,
      );
    });

    it.each(['ReduceMax', 'ReduceMin'])(
      'whose %s reads padding of 0, which some rows hide',
      async (op) => {
        const axes = { inputs: { x: { variableAxis: 1 } } };

        expect(await refusal(pooled(op), axes)).toContain("Padding changes the model's answers");
        const padWith = op === 'ReduceMax' ? -Infinity : Infinity;
        await start(pooled(op), { inputs: { x: { variableAxis: 1, padWith } } });
      },
    );

    it('whose output has a foreign axis name, if no rows can be made up or the check is off', async () => {
      const x = value('float32', 'batch', 3, 'width');
      const y = value('float32', 'rows', 3, 'width');
      const file = modelOf({ inputs: { x }, outputs: { y }, nodes: [node('Relu', ['x'], ['y'])] });

      expect(await refusal(file)).toContain(
        'Axis 0 of the output y: float32[rows, 3, width] is not named as the axis that counts the ' +
          "inputs' rows, and axis 2 of the input x: float32[batch, 3, width] may have any size. " +
          'Declare it: outputs: { y: { batchAxis: 0 } } if it counts rows',
      );
      expect(await refusal(file, { checkRows: false })).toContain('the check is switched off');
      await start(file, { outputs: { y: { batchAxis: 0 } } });
      const warmUp = [{ x: new Tensor('float32', Float32Array.of(1, -2, 3), [1, 3, 1]) }];
      await start(file, {}, { warmUp });
    });

    it('by the rows of warmUp, if rows cannot be made up', async () => {
      const x = value('float32', 'batch', 'width');
      const warmUp = [{ x: row(1, 2, 4) }];

      expect(await refusal(centred(x), {}, { warmUp })).toContain('has another answer');
      await start(gainModel(2), {}, { warmUp: [{ x: row(1, 2) }] });
    });

    it('by the rows of warmUp, also if the answer ignores the order of the elements', async () => {
      const warmUp = [{ x: row(1, -2, 4) }];
      const total = modelOf({
        outputs: { y: value('float32', 'batch', 3), total: value('float32') },
        nodes: [
          node('Identity', ['x'], ['y']),
          node('ReduceMean', ['x'], ['total'], { keepdims: 0 }),
        ],
      });

      expect(await refusal(total, {}, { warmUp })).toContain('The output "total" has no rows');
    });

    it('of fixed steps whose outputs have other numbers of rows', async () => {
      const x = value('float32', 2, 3);
      const uneven = modelOf({
        inputs: { x },
        outputs: { y: x, mean: value('float32', 3) },
        nodes: [
          node('Identity', ['x'], ['y']),
          node('ReduceMean', ['x'], ['mean'], { axes: [0], keepdims: 0 }),
        ],
      });
      const axes = { inputs: { x: { batchAxis: 0 } }, outputs: { mean: { batchAxis: 0 } } };

      expect(await refusal(uneven, axes)).toContain('Uneven rows: "mean" has 3, "y" has 2');
    });

    it('when it is loaded again, and the version before stays', async () => {
      const serving = await start(gainModel(2));
      const mixing = modelOf({
        inputs: { x: value('float32', 'batch', 2) },
        outputs: { y: value('float32', 'batch', 2) },
        nodes: [
          node('ReduceMean', ['x'], ['mean'], { axes: [0], keepdims: 1 }),
          node('Sub', ['x', 'mean'], ['y']),
        ],
      });

      await expect(serving.reload({ model: mixing })).rejects.toThrow('has another answer');
      expect(await serving.batchedRun({ x: row(1, 2) })).toEqual({ y: row(2, 4) });
    });

    it('that only run() opens', async () => {
      const serving = createServing({
        name: 'net',
        model: { file: centred(), isolation: 'none' },
      });

      await expect(serving.run({ x: row(1, 2, 3) })).rejects.toThrow('has another answer');
      await serving.close();
    });
  });

  it.each([
    ['fails with two rows', reshaped([1n, 3n])],
    ['gives one row for two', reshaped([1n, -1n], value('float32', 1, 'n'))],
  ])(
    '[FR2] A model that %s runs one row at a time, and the log says what that costs',
    async (_, file) => {
      const warnings = recordWarnings();
      const serving = await start(file, {}, { batchTimeout: 50 });
      const replies = [1, 2, 3].map((number) =>
        serving.batchedRun({ x: row(number, number, number) }),
      );

      expect(await Promise.all(replies)).toEqual(
        [1, 2, 3].map((number) => ({ y: row(number, number, number) })),
      );
      expect(warnings).toEqual([
        expect.stringMatching(
          /^The model of serving "net" cannot run two rows together \(.*\): it runs one row at a time, so batches gain nothing; export it with a dynamic batch axis$/s,
        ),
      ]);
      expect(await refusal(file, {}, { name: 'sized', batchSize: [1, 2] })).toMatch(
        /cannot run two rows together \(.*\), and batchSize allows 1, 2 rows; give batchSize: 1/s,
      );
    },
  );

  it.each([
    ['a tensor alone', row(0, 0, 0)],
    ['a container', { x: row(1, 1, 1) }],
    ['a tensor alone whose elements differ', row(1, 2, 3)],
  ])(
    '[FR2] An example in the form of %s shows that rows may share a batch, or that they mix',
    async (_, example) => {
      const warnings = recordWarnings();
      const options = { warmUp: [example], batchTimeout: 50 };
      const serving = await start(modelOf({ nodes: [node('Relu', ['x'], ['y'])] }), {}, options);
      const ends: number[] = [];
      serving.events$.subscribe((event) => event.type === 'batch:end' && ends.push(event.rows));
      await Promise.all([example, example].map((input) => serving.batchedRun(input)));

      expect(ends).toEqual([2]);
      expect(warnings).toEqual([]);
      expect(await refusal(centred(), {}, { ...options, name: 'mixing' })).toContain(
        'has another answer',
      );
    },
  );

  it('[FR2] Rows of different lengths share a batch if padding changes nothing', async () => {
    const inputs = { x: { variableAxis: 1 } };
    await start(pooled('ReduceSum'), { inputs });
    const serving = await start(pooled('ReduceSum'), { inputs }, { name: 'two', batchTimeout: 50 });

    expect(await Promise.all([row(1, 2, 3), row(4)].map((x) => serving.batchedRun({ x })))).toEqual(
      [{ y: row(6) }, { y: row(4) }],
    );
  });

  it('[FR2] [FQ1] If padding changes answers, a model that brings its own axes batches rows of one length only', async () => {
    const warnings = recordWarnings();
    const model = {
      name: 'pooled',
      fetch: async () => ({
        file: pooled('ReduceMean'),
        accept: () => ({ inputs: { x: { variableAxis: 1 } }, outputs: {} }),
      }),
    };
    const serving = await start(new Uint8Array(), { file: model }, { batchTimeout: 50 });
    const ends: number[] = [];
    serving.events$.subscribe((event) => event.type === 'batch:end' && ends.push(event.rows));
    const rows = [row(1, 2, 3), row(4), row(4, 5, 6)];

    const together = await Promise.all(rows.map((x) => serving.batchedRun({ x })));
    const alone = await Promise.all(rows.map((x) => serving.run({ x })));

    expect(together).toEqual([{ y: row(2) }, { y: row(4) }, { y: row(5) }]);
    expect(alone).toEqual(together);
    expect(ends.slice(0, 2).toSorted((a, b) => a - b)).toEqual([1, 2]);
    expect(warnings).toEqual([
      expect.stringMatching(
        /"net" reads the padding of shorter rows .* only rows of one length share a batch/,
      ),
    ]);
  });

  it('[FR2] The start says once what it could not check, and how to have it checked', async () => {
    const warnings = recordWarnings();
    const x = value('float32', 'batch', 'width');
    await start(modelOf({ inputs: { x }, outputs: { y: x }, nodes: [node('Relu', ['x'], ['y'])] }));
    const noise = { nodes: [node('RandomUniformLike', ['x'], ['y'])] };
    await start(modelOf(noise), {}, { name: 'noise' });
    await start(
      modelOf({
        nodes: [
          node('Abs', ['x'], ['size']),
          node('Neg', ['size'], ['negative']),
          node('Log', ['negative'], ['y']),
        ],
      }),
      {},
      { name: 'nan' },
    );

    expect(warnings).toEqual([
      'The model of serving "net" was not checked for answers that depend on other rows of a batch, ' +
        'since axis 1 of the input x: float32[batch, width] may have any size; give example inputs: ' +
        'warmUp: [...], or switch the check off: checkRows: false',
      expect.stringContaining('answers otherwise when the same row runs again'),
      expect.stringContaining('since "y" has no finite number for a row that runs alone'),
    ]);
  });

  it('[FR2] A dynamically quantised model keeps its warning and starts', async () => {
    const warnings = recordWarnings();
    await start(quantisedModel());

    expect(warnings).toEqual([expect.stringContaining('DynamicQuantizeLinear')]);
  });

  it.each([
    ['any size', {}, [1, 1, 2]],
    ['allowed sizes', { batchSize: [4, 8] }, [4, 4, 4, 4, 8]],
    ['batches of one row', { batchSize: 1 }, [1, 1]],
    ['fixed steps', {}, [2, 2, 2]],
  ])('[FR2] With %s the check runs no other numbers of rows', async (name, options, expected) => {
    const run = jest.spyOn(Session.prototype, 'run');
    try {
      await (name === 'fixed steps'
        ? start(gainModel(2, 2), { inputs: { x: { batchAxis: 0 } } })
        : start(gainModel(2), {}, options));
      const sizes = run.mock.calls.map(([feeds]) => feeds['x']!.dims[0]);
      expect(sizes).toEqual(expected);
    } finally {
      run.mockRestore();
    }
  });
});

/** The class of all sessions, whose type names only its factory. */
const Session = ort.InferenceSession as unknown as { readonly prototype: ort.InferenceSession };

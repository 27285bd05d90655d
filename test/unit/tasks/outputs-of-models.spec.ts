import { describe, expect, it } from '@jest/globals';
import {
  InvalidInputError,
  InvalidOutputError,
  InvalidServingError,
  type ServingDefinition,
} from 'nestjs-serving';
import {
  imageClassification,
  type LabelOptions,
  type RankedDocument,
  rerank,
  textClassification,
  textEmbedding,
  type TextEmbeddingOptions,
  tokenClassification,
  zeroShotClassification,
} from 'nestjs-serving/tasks';
import { node, onnxModel, type OnnxModel } from '../../fixtures/models/onnx-writer.js';
import { useTypedServings } from '../../fixtures/serving/use-servings.js';
import { readTiny, tinyFiles, tinyModel } from '../../fixtures/tasks/tiny-models.js';
import {
  lastToken,
  pooled,
  table,
  tokensAlone,
  withGraph,
  withoutMask,
} from '../../fixtures/tasks/written-models.js';

const start = useTypedServings();

const configOf = (name: string) =>
  JSON.parse(readTiny(`${name}/config.json`).toString()) as Record<string, unknown>;

const TEXTS = ['rows', 'A batch holds rows.', 'The sky is blue and the rows wait in the queue.'];

/** The vectors of texts in one batch, if the texts may share one, and of each text alone. */
async function vectorsOf(options: Partial<TextEmbeddingOptions>, texts: readonly string[] = TEXTS) {
  const serving = await start(
    textEmbedding({ name: 'net', model: tinyModel('embedder'), batchTimeout: 5, ...options }),
  );
  const together = await Promise.all(texts.map((text) => serving.batchedRun(text)));
  const { batches } = serving.counters();
  const alone: number[][] = [];
  for (const text of texts) {
    alone.push([...(await serving.run(text)).vector]);
  }
  return { together: together.map(({ vector }) => [...vector]), alone, batches };
}

function expectClose(ours: readonly (readonly number[])[], theirs: readonly (readonly number[])[]) {
  expect(ours.map(({ length }) => length)).toEqual(theirs.map(({ length }) => length));
  const apart = theirs.flatMap((row, i) => row.map((value, j) => Math.abs(value - ours[i]![j]!)));
  expect(Math.max(...apart)).toBeLessThan(1e-5);
}

const byIndex = (ranked: readonly RankedDocument[]) =>
  ranked.toSorted((one, other) => one.index - other.index).map(({ score }) => score);

/** The model's own numbers of documents in one call, and of each alone. */
async function scoresOf(model: ReturnType<typeof withGraph>) {
  const serving = await start(rerank({ name: 'net', model, scores: 'raw' }));
  const together = byIndex(await serving.batchedRun({ query: 'what', documents: TEXTS }));
  const { batches } = serving.counters();
  const alone: number[] = [];
  for (const document of TEXTS) {
    const [only] = await serving.batchedRun({ query: 'what', documents: [document] });
    alone.push(only!.score);
  }
  return { together, alone, batches };
}

/** Starts a serving without a warm-up, whose calls could fail as well. */
const cold =
  <Input, Output>(definition: ServingDefinition<Input, Output>) =>
  () =>
    start({ ...definition, warmUp: [] });

/** A graph that gives NaN for the token [UNK], whose id is 1: 0 divided by 0. */
const unknowing = (output: string, dims: readonly string[]): OnnxModel => ({
  inputs: { input_ids: { type: 'int64', dims: ['batch', 'tokens'] } },
  outputs: { [output]: { type: 'float32', dims: ['batch', ...dims] } },
  nodes: [
    node('Cast', ['input_ids'], ['ids'], { to: 1 }),
    node('Sub', ['ids', 'unknown'], ['from']),
    node('Div', ['from', 'from'], ['each']),
    ...(dims.length === 2
      ? [node('Unsqueeze', ['each', 'two'], [output])]
      : [node('ReduceSum', ['each', 'one'], [output], { keepdims: 1 })]),
  ],
  initializers: {
    unknown: { type: 'float32', dims: [], data: Float32Array.of(1) },
    one: { type: 'int64', dims: [1], data: BigInt64Array.of(1n) },
    two: { type: 'int64', dims: [1], data: BigInt64Array.of(2n) },
  },
});

describe('A text in a batch', () => {
  it('[FQ1] A text alone and beside longer ones has the same score by a model that looks for its own padding token', async () => {
    const config = { ...configOf('reranker'), pad_token_id: 4 };
    const model = withGraph('reranker', lastToken(1, 4), { 'config.json': config });
    const { together, alone, batches } = await scoresOf(model);
    expect(together).toEqual(alone);
    expect(new Set(alone).size).toBe(TEXTS.length);
    expect(batches).toBeLessThan(TEXTS.length);
  });

  it.each<[string, object, object]>([
    ['states no padding token', { pad_token_id: null }, { pad_token: '[MASK]' }],
    ['is padded before its texts', { pad_token_id: 4 }, { padding_side: 'left' }],
  ])(
    '[FQ1] Texts of different lengths share no batch of a model that pools itself and %s',
    async (_, config, ofTokenizer) => {
      const model = withGraph('reranker', lastToken(1, 4), {
        'config.json': { ...configOf('reranker'), ...config },
        'tokenizer_config.json': ofTokenizer,
      });
      const { together, alone, batches } = await scoresOf(model);
      expect(together).toEqual(alone);
      expect(batches).toBe(TEXTS.length);
    },
  );

  it('[FQ1] Texts of different lengths share no batch of a model without a mask, and texts of one length do', async () => {
    const options = { model: withGraph('embedder', withoutMask()), pooling: 'mean' } as const;
    const { together, alone, batches } = await vectorsOf(options);
    expectClose(together, alone);
    expect(batches).toBe(TEXTS.length);
    const same = await vectorsOf(options, ['rows', 'rows', 'rows']);
    expect(same.batches).toBe(1);
  });

  it('[FQ1] A text has its own vectors of tokens alone where the output names its axis otherwise', async () => {
    const model = withGraph('embedder', tokensAlone(8, ['other', 8]));
    const { together, alone } = await vectorsOf({ model, pooling: 'mean' });
    expectClose(together, alone);
  });
});

describe('A model that pools in its graph', () => {
  it.each<[string, Uint8Array, object]>([
    ['sentence_embedding alone', pooled('sentence_embedding', 12), {}],
    ['one output of another name', pooled('embedding', 12), {}],
    ['sentence_embedding and tokens', pooled('sentence_embedding', 12, 'token_embeddings'), {}],
    [
      'sentence_embedding behind its dense layer',
      pooled('sentence_embedding', 12, 'last_hidden_state'),
      {
        'modules.json': [
          { path: '', type: 'sentence_transformers.models.Transformer' },
          { path: '1_Pooling', type: 'sentence_transformers.models.Pooling' },
          { path: '2_Dense', type: 'sentence_transformers.models.Dense' },
        ],
        '2_Dense/config.json': { in_features: 8, out_features: 12 },
      },
    ],
  ])(
    '[FQ2] gives its own vectors whatever the files say about pooling: %s',
    async (_, graph, files) => {
      const pooling = { pooling_mode_cls_token: true };
      const model = withGraph('embedder', graph, { '1_Pooling/config.json': pooling, ...files });
      const { together, alone } = await vectorsOf({ model, normalize: false });
      expectClose(together, alone);
      const mean = withGraph('embedder', tokensAlone(12));
      expectClose(
        together,
        (await vectorsOf({ model: mean, pooling: 'mean', normalize: false })).alone,
      );
    },
  );

  it.each<[string, object, Partial<TextEmbeddingOptions>, string]>([
    ['the option pooling', {}, { pooling: 'mean' }, 'leave out the option pooling'],
    [
      'a dense layer of another size',
      {
        'modules.json': [{ path: '2_Dense', type: 'sentence_transformers.models.Dense' }],
        '2_Dense/config.json': { out_features: 4 },
      },
      {},
      'has a step that the ONNX file lacks, a dense layer to 4 numbers',
    ],
  ])('[FQ2] does not start with %s', async (_, files, options, message) => {
    const model = withGraph('embedder', pooled('sentence_embedding', 12), files as never);
    await expect(vectorsOf({ model, ...options })).rejects.toThrow(message);
  });
});

describe('A model of another task', () => {
  const embedder = { name: 'net', model: tinyModel('embedder') };
  const classifier = { name: 'net', model: tinyModel('classifier') };
  const tagger = { name: 'net', model: tinyModel('tagger') };
  const scorer = withGraph('classifier', lastToken(1, 0));
  const vit = tinyFiles('vit', ['preprocessor_config.json', 'onnx/model.onnx'], {
    'config.json': { id2label: { 0: 'one', 1: 'other' } },
  });
  it.each<[string, () => Promise<unknown>, string]>([
    [
      'rerank, of 3 labels',
      cold(rerank(classifier)),
      'one logit of a document, or two, and its model has logits [batch_size,3], as models for textClassification have',
    ],
    [
      'rerank, of vectors',
      cold(rerank(embedder)),
      'its model has last_hidden_state [batch_size,sequence_length,32], as models for textEmbedding have',
    ],
    [
      'rerank, of tokens',
      cold(rerank(tagger)),
      'as models for tokenClassification or textGeneration have; use a model of this task; the ' +
        'weights of a language model can be converted to one label',
    ],
    [
      'textClassification, of vectors',
      cold(textClassification(embedder)),
      'the output logits of 2 axes',
    ],
    [
      'textClassification, of tokens',
      cold(textClassification(tagger)),
      'the output logits of 2 axes',
    ],
    [
      'textClassification, of other labels',
      cold(textClassification({ name: 'net', model: scorer })),
      'a logit for each of the 3 labels of config.json, and its model has logits [batch,1]',
    ],
    [
      'tokenClassification, of texts',
      cold(tokenClassification({ ...classifier })),
      'the output logits of 3 axes',
    ],
    [
      'textEmbedding, of labels',
      cold(textEmbedding({ ...classifier, pooling: 'cls' })),
      'reads vectors',
    ],
    [
      'textEmbedding, of token labels',
      cold(textEmbedding({ ...tagger, pooling: 'mean' })),
      'reads vectors',
    ],
    [
      'imageClassification, of other labels',
      cold(imageClassification({ name: 'net', model: { from: vit, isolation: 'none' } })),
      'a logit for each of the 2 labels',
    ],
    [
      'imageClassification, of vectors',
      cold(imageClassification({ name: 'net', model: tinyModel('clip') })),
      'the output logits of 2 axes',
    ],
  ])('[FQ3] is refused at the start by %s', async (_, starting, message) => {
    await expect(starting()).rejects.toThrow(InvalidServingError);
    await expect(starting()).rejects.toThrow(message);
  });

  it('[FQ3] is refused by a reload, and the version before goes on', async () => {
    const serving = await start(
      textEmbedding({
        ...embedder,
        model: withGraph('embedder', tokensAlone(32)),
        pooling: 'mean',
      }),
    );
    const reload = serving.reload({ model: tinyModel('classifier').from });
    await expect(reload).rejects.toThrow(InvalidServingError);
    expect((await serving.batchedRun('rows')).vector).toHaveLength(32);
  });

  it("[FQ3] A reranker with two labels scores documents by its second label's probability", async () => {
    const model = withGraph('reranker', pooled('logits', 2), {
      'config.json': { ...configOf('reranker'), pad_token_id: 0 },
    });
    const raw = await start(rerank({ name: 'net', model, scores: 'raw' }));
    const unit = await start(rerank({ name: 'net', model }));
    const labels = await start(
      textClassification({
        name: 'net',
        model: withGraph('reranker', pooled('logits', 2), {
          'config.json': { max_position_embeddings: 64 },
        }),
      }),
    );
    const input = { query: 'what', documents: TEXTS };
    const scores = byIndex(await unit.batchedRun(input));
    const differences = byIndex(await raw.batchedRun(input));
    for (const [i, pair] of TEXTS.entries()) {
      const both = await labels.batchedRun({ text: 'what', pair });
      const second = both.find(({ label }) => label === 'LABEL_1')!.score;
      expect(scores[i]).toBeCloseTo(second, 6);
      expect(1 / (1 + Math.exp(-differences[i]!))).toBeCloseTo(second, 6);
    }
  });

  it.each(['textEmbedding', 'rerank', 'textClassification'] as const)(
    '[FQ3] An answer of %s with a number that is none fails its caller alone',
    async (task) => {
      const config = { 'config.json': { max_position_embeddings: 64 } };
      const unknown = withGraph('reranker', onnxModel(unknowing('logits', ['labels'])), config);
      const hidden = unknowing('last_hidden_state', ['tokens', 'size']);
      const vectors = withGraph('embedder', onnxModel(hidden), config);
      const texts = ['rows', '\u2603'];
      const calls = {
        textEmbedding: async () => {
          const serving = await start(
            textEmbedding({ name: 'net', model: vectors, pooling: 'mean' }),
          );
          return texts.map((text) => serving.batchedRun(text));
        },
        rerank: async () => {
          const serving = await start(rerank({ name: 'net', model: unknown }));
          return texts.map((text) => serving.batchedRun({ query: 'rows', documents: [text] }));
        },
        textClassification: async () => {
          const serving = await start(textClassification({ name: 'net', model: unknown }));
          return texts.map((text) => serving.batchedRun(text));
        },
      };
      const [good, bad] = await Promise.allSettled<unknown>(await calls[task]());
      expect(good!.status).toBe('fulfilled');
      expect(bad).toMatchObject({ reason: expect.any(InvalidOutputError) as unknown });
      expect(String((bad as PromiseRejectedResult).reason)).toContain('its model gave NaN');
    },
  );
});

describe('A model with one label', () => {
  const graph = pooled('logits', 1);
  const labelled = (config: object) =>
    withGraph('classifier', graph, { 'config.json': { ...configOf('reranker'), ...config } });
  const scores = async (config: object, options: LabelOptions = {}) => {
    const serving = await start(
      textClassification({ name: 'net', model: labelled(config), ...options }),
    );
    const replies = await Promise.all(TEXTS.map((text) => serving.batchedRun(text)));
    return replies.map(([only]) => only!.score);
  };

  it('[FQ4] gives its own number for regression, and its sigmoid otherwise', async () => {
    const raw = await scores({ problem_type: 'regression' });
    expect(new Set(raw).size).toBe(TEXTS.length);
    const expected = raw.map((value) => 1 / (1 + Math.exp(-value)));
    for (const type of ['single_label_classification', 'multi_label_classification', undefined]) {
      expectClose([await scores({ problem_type: type })], [expected]);
    }
    expectClose([await scores({ problem_type: 'regression' }, { multiLabel: true })], [expected]);
  });

  it('[FQ4] does not start where each score would be 1', async () => {
    await expect(scores({}, { multiLabel: false })).rejects.toThrow('leave out multiLabel: false');
  });
});

describe('The numbers of a vector', () => {
  it('[FQ5] can be as many as the model gives, for each call', async () => {
    const serving = await start(textEmbedding({ name: 'net', model: tinyModel('embedder') }));
    const { vector } = await serving.batchedRun({ text: 'rows', dimensions: 32 });
    expect(vector).toEqual((await serving.batchedRun('rows')).vector);
    const other = serving.batchedRun({ text: 'rows', dimensions: 16 });
    await expect(other).rejects.toThrow(InvalidInputError);
    await expect(other).rejects.toThrow('gives vectors of 32, and a call asks for 16 dimensions');
  });

  it('[FQ5] are not more than the model gives: a larger listed size fails the start', async () => {
    const definition = textEmbedding({
      name: 'net',
      model: tinyModel('embedder'),
      dimensions: [8, 64],
    });
    await expect(start(definition)).rejects.toThrow('dimensions has 64, and the vectors of');
  });

  it('[FQ5] are counted in the answer of a model that does not state them', async () => {
    const model = withGraph('embedder', tokensAlone(8, ['tokens', 'size']));
    const serving = await start(textEmbedding({ name: 'net', model, pooling: 'mean' }));
    expect((await serving.batchedRun({ text: 'rows', dimensions: 8 })).vector).toHaveLength(8);
  });
});

it('[FR2] A task refuses a model whose rows depend on each other, unless its check is switched off', async () => {
  const ids = { type: 'int64', dims: ['batch', 'tokens'] } as const;
  const mixing = onnxModel({
    inputs: { input_ids: ids, attention_mask: ids },
    outputs: { logits: { type: 'float32', dims: ['batch', 3] } },
    nodes: [
      node('Gather', ['table', 'input_ids'], ['each']),
      node('ReduceMean', ['each'], ['own'], { axes: [1], keepdims: 0 }),
      node('ReduceMean', ['own'], ['all'], { axes: [0], keepdims: 1 }),
      node('Sub', ['own', 'all'], ['logits']),
    ],
    initializers: { table: table(1200, 3) },
  });
  const model = withGraph('classifier', mixing);
  const starting = start(textClassification({ name: 'mixing', model }));
  await expect(starting).rejects.toThrow('has another answer beside other rows');
  const serving = await start(
    textClassification({ name: 'unchecked', model: { ...model, checkRows: false } }),
  );
  expect(await serving.batchedRun('a text')).toHaveLength(3);
});

/** A model whose labels count from 1. */
const oneBased = (name: string, count: number) => {
  const id2label = Object.fromEntries(
    Array.from({ length: count }, (_, i) => [i + 1, `entailment ${i}`]),
  );
  const files = { 'config.json': { ...configOf(name), id2label } };
  const from = tinyFiles(name, ['tokenizer.json', 'onnx/model.onnx'], files);
  return { name: 'net', model: { from, isolation: 'none' as const } };
};

describe('The labels of config.json', () => {
  const paths = ['config.json', 'preprocessor_config.json', 'onnx/model.onnx'];
  const vitWith = (id2label: unknown) => {
    const from = tinyFiles('vit', paths, { 'config.json': { id2label } });
    return imageClassification({ name: 'net', model: { from, isolation: 'none' } });
  };
  const labelsOf = async (id2label: unknown) => {
    const serving = await start(vitWith(id2label));
    const scores = await serving.batchedRun(readTiny('images/gradient.png'));
    return scores.map(({ label }) => label).toSorted();
  };

  it.each<[unknown, string[]]>([
    [undefined, ['LABEL_0', 'LABEL_1', 'LABEL_2']],
    [{ 2: 'two', 1: 'one', 0: 'none' }, ['none', 'one', 'two']],
    [{ 0: 5, 1: 6, 2: 7 }, ['5', '6', '7']],
  ])('[22.60] name each logit: %j', async (id2label, labels) => {
    expect(await labelsOf(id2label)).toEqual(labels);
  });

  it.each<unknown>([
    { 1: 'cat', 2: 'dog', 3: 'bird' },
    { 0: 'cat', 1: null, 2: 'bird' },
    ['cat', 'dog', 'bird'],
  ])('[22.60] fail the start if they do not name each logit: %j', async (id2label) => {
    await expect(labelsOf(id2label)).rejects.toThrow('by its place from 0 on; correct the file');
  });

  it.each<[string, () => Promise<unknown>]>([
    ['textClassification', cold(textClassification(oneBased('classifier', 3)))],
    ['zeroShotClassification', cold(zeroShotClassification(oneBased('classifier', 3)))],
    ['tokenClassification', cold(tokenClassification(oneBased('tagger', 5)))],
  ])('[22.60] fail the start of %s as well', async (_, starting) => {
    await expect(starting()).rejects.toThrow("has id2label { '1': 'entailment 0'");
  });
});

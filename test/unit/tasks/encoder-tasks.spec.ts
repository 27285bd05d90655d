import { availableParallelism } from 'node:os';
import { setImmediate } from 'node:timers/promises';
import { describe, expect, it, jest } from '@jest/globals';
import {
  type BatchEndEvent,
  createServing,
  InvalidInputError,
  InvalidServingError,
  type LocalServing,
  type ModelRunner,
  RequestTooLargeError,
} from 'nestjs-serving';
import {
  type ModelFiles,
  rerank,
  textClassification,
  textEmbedding,
  type TextEmbeddingOptions,
} from '../../../lib/extensions/tasks/index.js';
import { useTypedServings } from '../../fixtures/serving/use-servings.js';
import { answers, readTiny, tinyFiles, tinyModel } from '../../fixtures/tasks/tiny-models.js';

const { sentences, query, documents } = answers;

const start = useTypedServings();

/** The files of a model, with others in their place; undefined for none. */
function filesOf(name: 'embedder' | 'classifier', others: Record<string, object | undefined> = {}) {
  const own = ['config.json', 'tokenizer.json', 'tokenizer_config.json', 'onnx/model.onnx'];
  return { from: tinyFiles(name, own, others) as ModelFiles, isolation: 'none' as const };
}

function expectClose(ours: readonly (readonly number[])[], theirs: readonly (readonly number[])[]) {
  expect(ours.map(({ length }) => length)).toEqual(theirs.map(({ length }) => length));
  const apart = theirs.flatMap((row, i) => row.map((value, j) => Math.abs(value - ours[i]![j]!)));
  expect(Math.max(...apart)).toBeLessThan(1e-5);
}

async function vectorsOf(
  options: Partial<TextEmbeddingOptions>,
  inputs: readonly Parameters<
    LocalServing<string | { text: string }>['batchedRun']
  >[0][] = sentences,
): Promise<number[][]> {
  const serving = await start(
    textEmbedding({ name: 'net', model: tinyModel('embedder'), tooLong: 'cut', ...options }),
  );
  const replies = await Promise.all(inputs.map((input) => serving.batchedRun(input)));
  return replies.map(({ vector }) => [...vector]);
}

function threadsOf(options: Partial<TextEmbeddingOptions> = {}): number | undefined {
  const model = tinyModel('embedder').from;
  const definition = textEmbedding({ name: 'net', model, ...options });
  return (definition.model as ModelRunner).session?.intraOpNumThreads;
}

describe('textEmbedding', () => {
  it('[22.1] gives the vectors of sentence-transformers, as the files of the model say', async () => {
    expectClose(await vectorsOf({}), answers.embeddings['mean unit']!);
  });

  it.each([
    ['mean', 'mean', false],
    ['cls', 'cls', true],
    ['cls', 'cls', false],
    ['last', 'lasttoken', true],
    ['last', 'lasttoken', false],
    ['max', 'max', true],
    ['max', 'max', false],
  ] as const)(
    '[22.1] gives the vectors of sentence-transformers with pooling %s (%s), normalised %s',
    async (pooling, name, normalize) => {
      const theirs = answers.embeddings[`${name} ${normalize ? 'unit' : 'raw'}`]!;
      expectClose(await vectorsOf({ pooling, normalize }), theirs);
    },
  );

  it('[22.2] gives a text the same vector in a batch and alone, and counts its tokens', async () => {
    const serving = await start(
      textEmbedding({ name: 'net', model: tinyModel('embedder'), tooLong: 'cut' }),
    );
    const ends: BatchEndEvent[] = [];
    serving.eventsOf('batch:end').subscribe((event) => ends.push(event));
    const together = await Promise.all(sentences.map((text) => serving.batchedRun(text)));
    expect(ends.length).toBeLessThan(sentences.length);
    for (const [i, text] of sentences.entries()) {
      expect(await serving.run(text)).toEqual(together[i]);
    }
    expect(together[3]!.tokens).toBe(3);
    expect(Math.max(...together.map(({ tokens }) => tokens))).toBe(32);
  });

  it('[22.2] keeps a batch within its tokens, padding included, and lets a longer text run alone', async () => {
    const serving = await start(
      textEmbedding({
        name: 'net',
        model: tinyModel('embedder'),
        tooLong: 'cut',
        batchSize: { tokens: 20 },
      }),
    );
    const ends: BatchEndEvent[] = [];
    serving.eventsOf('batch:end').subscribe((event) => ends.push(event));
    const texts = ['x', 'x', 'x', 'x', 'x', 'x', 'x', sentences[4]!];
    await Promise.all(texts.map((text) => serving.batchedRun(text)));
    const rows = ends.map(({ rows: count }) => count).toSorted((one, other) => one - other);
    expect(rows.reduce((sum, count) => sum + count, 0)).toBe(texts.length);
    // 6 texts of 3 tokens are 18; the long one has 32.
    expect(Math.max(...rows)).toBeLessThanOrEqual(6);
    expect(rows[0]).toBe(1);
  });

  it('[22.3] puts the named prompt before a text, and by default that of the files', async () => {
    const [, own] = await vectorsOf({}, ['x', { text: 'x', prompt: 'query' } as never]);
    const [plain] = await vectorsOf({}, ['query: x']);
    expect(own).toEqual(plain);
    const [other] = await vectorsOf({ prompts: { q: 'query: ' }, defaultPrompt: 'q' }, ['x']);
    expect(other).toEqual(plain);
  });

  it('[22.3] refuses a prompt that is not there', async () => {
    const vectors = vectorsOf({}, [{ text: 'x', prompt: 'other' } as never]);
    await expect(vectors).rejects.toThrow(InvalidInputError);
    await expect(vectors).rejects.toThrow('has no prompt "other"; its prompts: query, document');
  });

  it('[22.3] cuts vectors to listed dimensions, and then normalises them', async () => {
    const [whole, cut] = await vectorsOf({ dimensions: [8, 32] }, [
      'x',
      { text: 'x', dimensions: 8 } as never,
    ]);
    const first = whole!.slice(0, 8);
    const length = Math.hypot(...first);
    expectClose([cut!], [first.map((value) => value / length)]);

    const refused = vectorsOf({ dimensions: [8, 32] }, [{ text: 'x', dimensions: 7 } as never]);
    await expect(refused).rejects.toThrow('gives vectors of 8 or 32, and a call asks for 7');
  });

  it('[22.4] refuses texts that are too long, unless it is to cut them', async () => {
    const refused = vectorsOf({ tooLong: 'refuse' }, [sentences[4]!]);
    await expect(refused).rejects.toThrow(RequestTooLargeError);
    await expect(refused).rejects.toThrow(
      /^Serving "net" reads texts of at most 32 tokens, and one has \d+ tokens; shorten it/,
    );

    const characters = vectorsOf({ tooLong: 'refuse' }, ['x '.repeat(5001)]);
    await expect(characters).rejects.toThrow('one has 10002 characters');
    expect(await vectorsOf({}, ['x '.repeat(5001)])).toEqual(
      await vectorsOf({}, ['x '.repeat(5000)]),
    );
  });

  it('[22.4] refuses special tokens in a text, unless it is to read them', async () => {
    const refused = vectorsOf({}, ['a [SEP] b']);
    await expect(refused).rejects.toThrow(InvalidInputError);
    await expect(refused).rejects.toThrow('a text with "[SEP]", a special token of its model');
    expect(await vectorsOf({ specialTokens: 'accept' }, ['a [SEP] b'])).toHaveLength(1);
  });

  it('[22.26] reads special tokens as plain text, on the event loop and in its thread', async () => {
    const options = { specialTokens: 'text' as const };
    const [plain, spaced] = await vectorsOf(options, ['a [SEP] b', 'a [ SEP ] b']);
    // The tokens of both are the same.
    expect(plain).toEqual(spaced);
    expect(plain).not.toEqual((await vectorsOf({ specialTokens: 'accept' }, ['a [SEP] b']))[0]);
    const long = 'word [SEP] '.repeat(60);
    expect(await vectorsOf(options, [long])).toEqual(
      await vectorsOf(options, [long.replaceAll('[SEP]', '[ SEP ]')]),
    );

    const prompted = textEmbedding({
      name: 'net',
      model: tinyModel('embedder'),
      prompts: { query: '[CLS] query: ' },
      ...options,
    });
    await expect(start(prompted)).rejects.toThrow('The prompt "query" of');
  });

  it.each([[''], [7], [null], [{ text: '' }], [{ text: 7 }], [['a']]])(
    '[22.4] refuses %j, and no other call',
    async (input) => {
      const serving = await start(textEmbedding({ name: 'net', model: tinyModel('embedder') }));
      const other = serving.batchedRun('x');
      await expect(serving.batchedRun(input as never)).rejects.toThrow(InvalidInputError);
      expect((await other).tokens).toBe(3);
    },
  );

  it.each<[string, Record<string, object | undefined>, string]>([
    ['says how to pool', {}, 'give the option pooling: "mean", "cls", "last", "max"'],
    [
      'names a known pooling',
      { '1_Pooling/config.json': { pooling_mode: 'of_tomorrow' } },
      'give the option pooling',
    ],
    [
      'names a pooling at all',
      { '1_Pooling/config.json': { pooling_mode_mean_tokens: false } },
      "don't say how the vectors of a text's tokens become one",
    ],
    [
      'has no other steps',
      { 'modules.json': [{ type: 'sentence_transformers.models.Dense' }] },
      'has a step that the ONNX file lacks, sentence_transformers.models.Dense',
    ],
    ['has config.json', { 'config.json': undefined }, 'the given files has no config.json'],
    ['has tokenizer.json', { 'tokenizer.json': undefined }, 'has no tokenizer.json'],
    [
      'has a tokenizer',
      { 'tokenizer.json': {} },
      'The tokenizer of the given files cannot be used',
    ],
    [
      'has the model',
      { 'onnx/model.onnx': undefined },
      'has no onnx/model.onnx and no model.onnx; name its ONNX file',
    ],
    [
      'states its most tokens',
      { 'config.json': {}, 'tokenizer_config.json': { model_max_length: 1e30 } },
      "don't state how many tokens the model reads; give the option maxTokens",
    ],
  ])('[22.5] does not start unless the model %s', async (_, others, message) => {
    const definition = textEmbedding({ name: 'net', model: filesOf('embedder', others) });
    await expect(start(definition)).rejects.toThrow(message);
    await expect(start(definition)).rejects.toThrow('Serving "net"');
  });

  it('[22.5] starts from given files with pooling as an option', async () => {
    const model = filesOf('embedder');
    expectClose(
      await vectorsOf({ model, pooling: 'mean', maxTokens: 32 }),
      answers.embeddings['mean unit']!,
    );
  });

  it('[22.5] does not start with more tokens than the model reads', async () => {
    const definition = textEmbedding({ name: 'net', model: tinyModel('embedder'), maxTokens: 65 });
    await expect(start(definition)).rejects.toThrow(
      `maxTokens is 65, and the model of ${tinyModel('embedder').from} reads at most 64 tokens`,
    );
  });

  it.each<[object, string]>([
    [{ pooling: 'average' }, 'option "pooling" is "average"; allowed is "mean", "cls", "last"'],
    [{ tooLong: 'trim' }, 'option "tooLong" is "trim"; allowed is "refuse" or "cut"'],
    [{ dimensions: [] }, 'option "dimensions"'],
    [{ batchSize: { tokens: 0 } }, 'option "batchSize.tokens" is 0'],
    [{ model: { from: '' } }, 'option "model.from" is ""'],
    [{ model: '/no/such/folder' }, 'there is no folder /no/such/folder'],
    [{ model: 'hf:one' }, '"hf:one" is no repository of the Hub'],
  ])('[22.5] refuses the options %j', (options, message) => {
    const create = () => textEmbedding({ name: 'net', model: tinyModel('embedder'), ...options });
    expect(create).toThrow(InvalidServingError);
    expect(create).toThrow(message);
  });

  it('[22.5] gives a single partition all cores but one, or both of two', () => {
    const cores = availableParallelism();
    expect(threadsOf()).toBe(cores <= 2 ? cores : cores - 1);
    expect(threadsOf({ partitions: 2 })).toBeUndefined();
    expect(threadsOf({ model: tinyModel('embedder') })).toBeUndefined();
    const session = { intraOpNumThreads: 7 };
    expect(threadsOf({ model: { from: tinyModel('embedder').from, session } })).toBe(7);
  });

  it('[22.5] leaves the other options to the serving', () => {
    const definition = textEmbedding({
      name: 'net',
      model: tinyModel('embedder'),
      timeout: 500,
      poling: 'mean',
    } as never);
    expect(definition.timeout).toBe(500);
    expect(() => createServing(definition)).toThrow('unknown option "poling"');
  });
});

describe('rerank', () => {
  const options = { name: 'net', model: tinyModel('reranker'), tooLong: 'cut' } as const;

  it('[FZ7] A list gives other calls their turn while it is tokenized, and ends with its caller', async () => {
    const serving = await start(rerank(options));
    let lastReads = 0;
    const list = new Proxy(Array<string>(300).fill('a document'), {
      get(target, name) {
        lastReads += name === '299' ? 1 : 0;
        return Reflect.get(target, name) as unknown;
      },
    });
    let time = 0;
    const clock = jest.spyOn(performance, 'now').mockImplementation(() => (time += 5));
    const leave = new AbortController();
    const call = serving.batchedRun({ query, documents: list }, { signal: leave.signal });
    await setImmediate();
    leave.abort();
    await expect(call).rejects.toThrow();
    for (let turn = 0; turn < 1000; turn++) {
      await setImmediate();
    }
    clock.mockRestore();
    // It was checked, and not tokenized.
    expect(lastReads).toBe(1);
  });

  it("[22.6] orders documents by Python's scores", async () => {
    const serving = await start(rerank({ ...options, scores: 'raw' }));
    const ranked = await serving.batchedRun({ query, documents });
    const scores = ranked.toSorted((a, b) => a.index - b.index).map(({ score }) => score);
    expectClose([scores], [answers.scores]);
    expect(ranked.map(({ score }) => score)).toEqual(scores.toSorted((a, b) => b - a));
  });

  it('[22.6] gives scores from 0 to 1 by default, and as many documents as a call asks for', async () => {
    const serving = await start(rerank(options));
    const ranked = await serving.batchedRun({ query, documents, top: 2 });
    const scores = answers.scores.map((score) => 1 / (1 + Math.exp(-score)));
    const best = scores.toSorted((a, b) => b - a).slice(0, 2);
    expectClose([ranked.map(({ score }) => score)], [best]);
    expect(ranked.map(({ index }) => scores[index]!.toFixed(5))).toEqual(
      best.map((score) => score.toFixed(5)),
    );
  });

  it('[22.6] runs the documents of one call and of others together, and a long list whole', async () => {
    const serving = await start(rerank(options));
    const many = Array.from({ length: 300 }, (_, i) => documents[i % documents.length]!);
    const [long, short] = await Promise.all([
      serving.batchedRun({ query, documents: many }),
      serving.batchedRun({ query, documents: documents.slice(0, 1) }),
    ]);
    expect(long.map(({ index }) => index).toSorted((a, b) => a - b)).toEqual(many.map((_, i) => i));
    const alone = await serving.batchedRun({ query, documents });
    for (const { index, score } of long) {
      const own = alone.find((each) => each.index === index % documents.length)!;
      expect(Math.abs(own.score - score)).toBeLessThan(1e-6);
    }
    expect(short).toEqual([alone.find(({ index }) => index === 0)]);
    expect(serving.counters().batches).toBeLessThan(100);
  });

  it('[22.6] ends all documents of a call that is cancelled', async () => {
    const serving = await start(rerank(options));
    const stop = new AbortController();
    const many = Array.from({ length: 500 }, () => documents[4]!);
    const call = serving.batchedRun({ query, documents: many }, { signal: stop.signal });
    stop.abort(new Error('gone'));
    await expect(call).rejects.toThrow('gone');
    expect(serving.queued).toBe(0);
  });

  it.each([
    [{ query, documents: [] }, 'at least one text'],
    [{ query: '', documents }, 'takes { query, documents, top? }'],
    [{ query, documents, top: 0 }, 'a whole number from 1 on'],
    [{ query, documents: ['a', ''] }, 'was given "" as document 1'],
    [{ query, documents: ['a', '[SEP]'] }, 'a text with "[SEP]"'],
    [null, 'and was given null'],
  ])('[22.4] refuses %j', async (input, message) => {
    const serving = await start(rerank(options));
    const call = serving.batchedRun(input as never);
    await expect(call).rejects.toThrow(InvalidInputError);
    await expect(call).rejects.toThrow(message);
  });
});

describe('textClassification', () => {
  const options = { name: 'net', model: tinyModel('classifier'), tooLong: 'cut' } as const;
  const labels = ['good', 'bad', 'so-so'];

  async function scoresOf(definition: ReturnType<typeof textClassification>) {
    const serving = await start(definition);
    const replies = await Promise.all(sentences.map((text) => serving.batchedRun(text)));
    for (const reply of replies) {
      const scores = reply.map(({ score }) => score);
      expect(scores).toEqual(scores.toSorted((one, other) => other - one));
    }
    return replies.map((reply) =>
      labels.map((label) => reply.find((each) => each.label === label)!.score),
    );
  }

  it("[22.7] gives Python's labels and scores, the best first", async () => {
    expectClose(await scoresOf(textClassification(options)), answers.softmax);
  });

  it('[22.7] gives scores that stand by themselves for several labels', async () => {
    const multiLabel = textClassification({ ...options, multiLabel: true });
    expectClose(await scoresOf(multiLabel), answers.sigmoid);
    const config = JSON.parse(readTiny('classifier/config.json').toString()) as object;
    const stated = filesOf('classifier', {
      'config.json': { ...config, problem_type: 'multi_label_classification' },
    });
    expectClose(await scoresOf(textClassification({ ...options, model: stated })), answers.sigmoid);
  });

  it("[22.7] gives all labels in the model's order to a call that asks for it", async () => {
    const serving = await start(textClassification({ ...options, top: 1 }));
    const [text] = sentences;
    const all = await serving.batchedRun({ text: text!, order: 'model' });
    expect(all.map(({ label }) => label)).toEqual(labels);
    expectClose([all.map(({ score }) => score)], [answers.softmax[0]!]);
    expect(await serving.batchedRun({ text: text!, order: 'score' })).toHaveLength(1);
    await expect(serving.batchedRun({ text: text!, order: 'best' as 'score' })).rejects.toThrow(
      'order?: "score" or "model"',
    );
  });

  it('[22.7] gives the best labels only, of a pair as well', async () => {
    const serving = await start(textClassification({ ...options, top: 1 }));
    const [best, ...others] = await serving.batchedRun({ text: sentences[0]!, pair: 'rows' });
    expect(labels).toContain(best!.label);
    expect(others).toEqual([]);
  });

  it.each([[''], [{ text: 'a', pair: '' }], [undefined]])('[22.4] refuses %j', async (input) => {
    const serving = await start(textClassification(options));
    await expect(serving.batchedRun(input as never)).rejects.toThrow(InvalidInputError);
  });
});

it('[22.33] An option that no call of a task has is refused', async () => {
  const [vectors, ranks, labels] = await Promise.all([
    start(textEmbedding({ name: 'vectors', model: tinyModel('embedder') })),
    start(rerank({ name: 'ranks', model: tinyModel('reranker') })),
    start(textClassification({ name: 'labels', model: tinyModel('classifier') })),
  ]);
  const sized = { text: 'a', dimension: 8 };
  const short = { query: 'a', documents: ['b', 'c'], topN: 1 };
  const paired = { text: 'a', other: 'b' };
  await expect(vectors.batchedRun(sized)).rejects.toThrow(
    'was given the unknown option "dimension"; known are text, prompt, dimensions',
  );
  await expect(ranks.batchedRun(short)).rejects.toThrow('"topN"; known are query, documents, top');
  await expect(labels.batchedRun(paired)).rejects.toThrow('"other"; known are text, pair, order');
  await expect(vectors.batchedRun(sized)).rejects.toThrow(InvalidInputError);
});

import { isDeepStrictEqual } from 'node:util';
import { afterEach, beforeEach, describe, expect, it, jest } from '@jest/globals';
import { createServing, InvalidInputError } from 'nestjs-serving';
import {
  rerank,
  textEmbedding,
  type TextEmbeddingOptions,
  textGeneration,
  type TextToEmbed,
} from 'nestjs-serving/tasks';
import { recordWarnings } from '../../fixtures/recorded-warnings.js';
import { silenceLog } from '../../fixtures/silent-log.js';
import { readTiny, tinyFiles } from '../../fixtures/tasks/tiny-models.js';
import { pooled, tokensAlone, withGraph } from '../../fixtures/tasks/written-models.js';

const started: { close(): Promise<void> }[] = [];
beforeEach(() => silenceLog());
afterEach(async () => {
  jest.restoreAllMocks();
  await Promise.all(started.splice(0).map((serving) => serving.close()));
});

const ST = 'config_sentence_transformers.json';
const BERT = 'sentence_bert_config.json';
const POOLING = '1_Pooling/config.json';
const TOKENIZER = 'tokenizer_config.json';
const modules = (type: string) => [{ idx: 0, name: '0', path: '', type }];

/**
 * The files of a repository that Python's libraries read, each setting in them that can change a
 * vector, and what the task does. `follows`: the vector changes as in Python. `refuses` and `warns`:
 * at the start, with the setting's name. `ignores`: the vector stays, for the reason given.
 */
const SETTINGS: readonly (readonly [
  file: string,
  content: object,
  does: 'follows' | 'refuses' | 'warns' | 'ignores',
  why?: string,
])[] = [
  [BERT, { max_seq_length: 5 }, 'follows'],
  [BERT, { do_lower_case: true }, 'follows'],
  [BERT, { tokenizer_args: { padding_side: 'left' } }, 'refuses'],
  [BERT, { processor_kwargs: { padding_side: 'left' } }, 'refuses'],
  [BERT, { processing_kwargs: { text: { max_length: 5 } } }, 'refuses'],
  [BERT, { model_kwargs: { attn_implementation: 'sdpa' } }, 'ignores', 'the graph is exported'],
  [BERT, { model_args: { attn_implementation: 'sdpa' } }, 'ignores', 'the graph is exported'],
  [BERT, { transformer_task: 'feature-extraction' }, 'ignores', 'the graph is exported'],
  [BERT, { of_tomorrow: true }, 'warns'],
  ...['roberta', 'distilbert', 'camembert', 'albert', 'xlm-roberta', 'xlnet'].map(
    (kind) => [`sentence_${kind}_config.json`, { max_seq_length: 5 }, 'follows'] as const,
  ),
  [POOLING, { pooling_mode_cls_token: true }, 'follows'],
  [POOLING, { pooling_mode: 'max' }, 'follows'],
  [POOLING, { pooling_mode_weightedmean_tokens: true }, 'refuses'],
  [POOLING, { pooling_mode_mean_sqrt_len_tokens: true }, 'refuses'],
  [POOLING, { pooling_mode_mean_tokens: true, pooling_mode_max_tokens: true }, 'refuses'],
  [POOLING, { pooling_mode_mean_tokens: true, include_prompt: false }, 'follows'],
  [
    POOLING,
    { pooling_mode_mean_tokens: true, word_embedding_dimension: 8 },
    'ignores',
    'the graph states it',
  ],
  [POOLING, { pooling_mode_mean_tokens: true, of_tomorrow: 1 }, 'warns'],
  [ST, { prompts: { own: 'a rule: ' }, default_prompt_name: 'own' }, 'follows'],
  [ST, { prompts: { own: 'a rule: ' }, default_prompt_name: 'other' }, 'refuses'],
  [ST, { model_type: 'SparseEncoder' }, 'refuses'],
  [ST, { similarity_fn_name: 'dot' }, 'ignores', 'the caller compares vectors'],
  [ST, { truncate_dim: 4 }, 'warns'],
  ['modules.json', modules('sentence_transformers.models.Transformer'), 'follows'],
  ['modules.json', modules('sentence_transformers.models.WordWeights'), 'refuses'],
  ['modules.json', modules('custom_st.Transformer'), 'refuses'],
  [TOKENIZER, { truncation_side: 'left', model_max_length: 5 }, 'follows'],
  [TOKENIZER, { model_max_length: 5 }, 'follows'],
  [TOKENIZER, { tokenizer_class: 'BertTokenizer', do_lower_case: true }, 'refuses'],
  [TOKENIZER, { tokenizer_class: 'BertTokenizer', strip_accents: true }, 'refuses'],
  [TOKENIZER, { tokenizer_class: 'BertTokenizer', tokenize_chinese_chars: false }, 'refuses'],
  [
    TOKENIZER,
    { tokenizer_class: 'BertTokenizer', do_lower_case: false },
    'ignores',
    'tokenizer.json has it',
  ],
  [TOKENIZER, { tokenizer_class: 'DebertaV2Tokenizer', do_lower_case: true }, 'refuses'],
  [
    TOKENIZER,
    { tokenizer_class: 'AlbertTokenizer', do_lower_case: false },
    'ignores',
    'tokenizer.json has it',
  ],
  [TOKENIZER, { padding_side: 'left' }, 'ignores', 'padding changes no vector of a token'],
  [TOKENIZER, { clean_up_tokenization_spaces: true }, 'ignores', 'only for decoding'],
];

const PROMPTS = { prompts: { own: 'a rule: ' } };

/** The model gives each token's own vector; its tokenizer tells cases apart. */
function model(files: Readonly<Record<string, object>>) {
  return withGraph('embedder', tokensAlone(), {
    'tokenizer.json': readTiny('tokenizers/bert-cased.json'),
    [TOKENIZER]: {},
    [POOLING]: { pooling_mode_mean_tokens: true },
    ...files,
  });
}

async function vectorOf(
  options: Partial<TextEmbeddingOptions>,
  input: string | TextToEmbed = 'A Rule Of The Rows, and The Queue',
): Promise<number[]> {
  const serving = createServing(
    textEmbedding({ name: 'net', model: model({}), tooLong: 'cut', ...options }),
  );
  started.push(serving);
  await serving.start();
  return [...(await serving.batchedRun(input)).vector];
}

/** Pools the first token, and has prompts of different words. */
function withPrompts(pooling: object) {
  return {
    model: model({
      [POOLING]: { pooling_mode_cls_token: true, ...pooling },
      [ST]: { prompts: { one: 'a query of the ', two: 'Rows and Queues ' } },
    }),
  };
}

function reranker(files: Readonly<Record<string, object>>) {
  const others = { 'tokenizer.json': readTiny('tokenizers/bert-cased.json'), ...files };
  return rerank({ name: 'net', model: withGraph('reranker', pooled('logits', 1), others) });
}

/** The number of different scores of two documents that differ in case. */
async function countScores(files: Readonly<Record<string, object>>): Promise<number> {
  const serving = createServing(reranker(files));
  started.push(serving);
  await serving.start();
  const documents = ['A Rule Of The Rows', 'a rule of the rows'];
  const ranked = await serving.batchedRun({ query: 'what', documents });
  return new Set(ranked.map(({ score }) => score)).size;
}

describe('A setting of the files of a repository', () => {
  it.each(SETTINGS.map((row) => [row[2], row[0], JSON.stringify(row[1]), row[1]] as const))(
    '[FQ6] A task %s what %s says: %s',
    async (does, file, _, content) => {
      const warnings = recordWarnings();
      // A setting for prompts is seen in a call with one.
      const isOfPrompt = 'include_prompt' in content;
      const input = isOfPrompt ? { text: 'A Rule', prompt: 'own' } : undefined;
      const base: Record<string, object> = isOfPrompt ? { [ST]: PROMPTS } : {};
      const vector = vectorOf({ model: model({ ...base, [file]: content }) }, input);
      if (does === 'refuses') {
        await expect(vector).rejects.toThrow(/^Serving "net".*( has | ask for |default prompt)/);
        return;
      }
      const ours = await vector;
      const without = await vectorOf({ model: model(base) }, input);
      expect(isDeepStrictEqual(ours, without)).toBe(does !== 'follows');
      const named = Object.keys(content).filter((key) => warnings.join().includes(`"${key}"`));
      expect(named.length > 0).toBe(does === 'warns');
    },
  );

  it('[FQ6] The words of a prompt are not pooled where include_prompt is false', async () => {
    const files = {
      [POOLING]: { pooling_mode_mean_tokens: true, include_prompt: false },
      [ST]: { prompts: { one: 'a query of the ', two: 'Rows and Queues ' } },
    };
    const [one, two] = await Promise.all(
      ['one', 'two'].map((prompt) => vectorOf({ model: model(files) }, { text: 'A Rule', prompt })),
    );
    expect(one).toEqual(two);
    const first = { model: model({ ...files, [BERT]: { max_seq_length: 4 } }) };
    await expect(vectorOf(first, { text: 'A Rule', prompt: 'one' })).rejects.toThrow(
      'the prompt leaves no token of the text',
    );
    const graph = withGraph('embedder', pooled('sentence_embedding', 8), files);
    await expect(vectorOf({ model: graph })).rejects.toThrow('(include_prompt)');
  });

  it('[FQ6] Texts that differ in case alone have one vector where do_lower_case is true', async () => {
    const options = { model: model({ [BERT]: { do_lower_case: true } }) };
    expect(await vectorOf(options, 'A RULE')).toEqual(await vectorOf(options, 'a rule'));
  });

  it('[FQ6] Only characters are put in lower case where do_lower_case is true, each by itself', async () => {
    const lower = { model: model({ [BERT]: { do_lower_case: true } }) };
    expect(await vectorOf(lower, 'ΟΔΟΣ')).toEqual(await vectorOf({}, 'οδοσ'));
    expect(await vectorOf({}, 'οδος')).not.toEqual(await vectorOf({}, 'οδοσ'));
    const prompts = { prompts: { own: '[MASK] of: ' } };
    const text = { text: 'a rule', prompt: 'own' };
    expect(await vectorOf({ ...lower, ...prompts }, text)).toEqual(await vectorOf(prompts, text));
  });

  it("[FQ6] The text's own first token is pooled where include_prompt is false", async () => {
    const text = 'rule';
    const own = await vectorOf(withPrompts({ include_prompt: false }), { text, prompt: 'one' });
    expect(await vectorOf(withPrompts({ include_prompt: false }), { text, prompt: 'two' })).toEqual(
      own,
    );
    expect(await vectorOf(withPrompts({}), { text, prompt: 'one' })).not.toEqual(own);
  });

  it('[FQ6] A reranker puts texts in lower case where do_lower_case is true', async () => {
    expect(await countScores({ [TOKENIZER]: {} })).toBe(2);
    expect(await countScores({ [TOKENIZER]: {}, [BERT]: { do_lower_case: true } })).toBe(1);
  });

  it.each([
    ['default_prompt_name "own"', { model_type: 'CrossEncoder', default_prompt_name: 'own' }],
    ['model_type "SentenceTransformer"', { model_type: 'SentenceTransformer' }],
  ])('[FQ6] A reranker refuses %s', async (named, content) => {
    const serving = createServing(reranker({ [TOKENIZER]: {}, [ST]: content }));
    started.push(serving);
    await expect(serving.start()).rejects.toThrow(`${ST} of the given files has ${named}`);
  });

  it('[FQ6] A text keeps its end where truncation_side is left, and its beginning otherwise', async () => {
    const left = {
      model: model({ [TOKENIZER]: { truncation_side: 'left', model_max_length: 4 } }),
    };
    const right = { model: model({ [TOKENIZER]: { model_max_length: 4 } }) };
    expect(await vectorOf(left, 'the sky the rows')).toEqual(await vectorOf(left, 'rows the rows'));
    expect(await vectorOf(right, 'the sky the rows')).toEqual(
      await vectorOf(right, 'the sky rows'),
    );
  });

  it('[FQ10] A prompt may have special tokens, and the text of a caller may not', async () => {
    const options = { prompts: { own: '[MASK] of: ' } };
    const vector = await vectorOf(options, { text: 'A Rule', prompt: 'own' });
    expect(vector).not.toEqual(await vectorOf({}, 'A Rule'));
    await expect(vectorOf(options, { text: '[MASK]', prompt: 'own' })).rejects.toThrow(
      InvalidInputError,
    );
  });

  it.each([
    ['{{ "no" if tools is none else "some" }} tools', 'no tools'],
    ['{{ "no" if documents is none else "some" }} documents', 'no documents'],
    ['pad{{ pad_token }} token', 'pad token'],
  ])('[FQ6] A chat template gets what Python gives it: %s', async (chatTemplate, written) => {
    const paths = ['config.json', 'generation_config.json', 'tokenizer.json', 'onnx/model.onnx'];
    const from = tinyFiles('generator', paths, { 'tokenizer_config.json': { pad_token: null } });
    const definition = textGeneration({ name: 'net', model: { from }, chatTemplate });
    const given: unknown[] = [];
    const serving = createServing({
      ...definition,
      async preprocess(input, context) {
        const prepared = await definition.preprocess!(input, context);
        given.push(prepared.batch);
        return prepared;
      },
    });
    started.push(serving);
    await serving.start();
    await serving.batchedRun({ messages: [{ role: 'user', content: ' ' }], maxTokens: 1 });
    await serving.batchedRun({ prompt: written, maxTokens: 1 });
    const [chat, prompt] = given.slice(-2) as readonly { readonly ids: readonly number[] }[];
    expect(chat!.ids.join()).toContain(prompt!.ids.slice(1).join());
  });
});

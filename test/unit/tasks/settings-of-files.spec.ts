import { isDeepStrictEqual } from 'node:util';
import { afterEach, beforeEach, describe, expect, it, jest } from '@jest/globals';
import {
  createServing,
  InvalidInputError,
  type Serving,
  type ServingDefinition,
} from 'nestjs-serving';
import {
  imageClassification,
  type ModelFiles,
  rerank,
  speechToText,
  textClassification,
  textEmbedding,
  type TextEmbeddingOptions,
  textGeneration,
  tokenClassification,
  type TextToEmbed,
} from 'nestjs-serving/tasks';
import { pool } from '../../../lib/extensions/tasks/outputs.js';
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
 * A setting of a file that Python's libraries read, and what the task does. `follows`: the answer
 * changes as in Python. `refuses` and `warns`: at the start, with the setting's name. `ignores`: the
 * answer stays, for the reason given.
 */
type Setting = readonly [
  file: string,
  content: object,
  does: 'follows' | 'refuses' | 'warns' | 'ignores',
  why?: string,
];

/** Each setting that can change a vector. */
const OF_VECTORS: readonly Setting[] = [
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
  [POOLING, { pooling_mode: ['mean', 'max'] }, 'follows'],
  [POOLING, { pooling_mode: 'of_tomorrow' }, 'refuses'],
  [POOLING, { pooling_mode_of_tomorrow: true }, 'refuses'],
  [POOLING, { pooling_mode_weightedmean_tokens: true }, 'follows'],
  [POOLING, { pooling_mode_mean_sqrt_len_tokens: true }, 'follows'],
  [POOLING, { pooling_mode_lasttoken: true }, 'follows'],
  [POOLING, { pooling_mode_mean_tokens: true, pooling_mode_max_tokens: true }, 'follows'],
  [POOLING, { pooling_mode_mean_tokens: true, include_prompt: false }, 'follows'],
  [
    POOLING,
    { pooling_mode_mean_tokens: true, word_embedding_dimension: 8 },
    'ignores',
    'the graph states it',
  ],
  [POOLING, { of_tomorrow: 1 }, 'warns'],
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
  [TOKENIZER, { do_lower_case: true }, 'refuses'],
  [TOKENIZER, { split_special_tokens: true }, 'refuses'],
  [TOKENIZER, { add_bos_token: true, bos_token: '[MASK]' }, 'follows'],
  [TOKENIZER, { add_eos_token: false, eos_token: '[SEP]' }, 'follows'],
  [TOKENIZER, { add_bos_token: true, bos_token: '[CLS]' }, 'ignores', 'tokenizer.json has it'],
  [TOKENIZER, { added_tokens_decoder: { 7: { content: 'Rule' } } }, 'warns'],
  [TOKENIZER, { added_tokens_decoder: { 2: { content: '[CLS]', lstrip: true } } }, 'warns'],
  [TOKENIZER, { additional_special_tokens: ['Rule'] }, 'warns'],
  [TOKENIZER, { extra_special_tokens: { image_token: 'Rule' } }, 'warns'],
  [TOKENIZER, { mask_token: '[MASK]' }, 'ignores', 'tokenizer.json has it'],
  [TOKENIZER, { legacy: true, sp_model_kwargs: {} }, 'ignores', 'only for slow tokenizers'],
  [TOKENIZER, { vocab_type: 'spm', src_lang: null }, 'ignores', 'tokenizer.json has it'],
  [TOKENIZER, { max_length: 4, stride: 2 }, 'ignores', 'Python stores it, and does not read it'],
  [TOKENIZER, { auto_map: { AutoTokenizer: ['own', null] } }, 'warns'],
  [TOKENIZER, { src_lang: 'de' }, 'warns'],
  ['special_tokens_map.json', { mask_token: '[MASK]' }, 'ignores', 'tokenizer.json has it'],
  ['special_tokens_map.json', { sep_token: { content: 'Rule' } }, 'warns'],
  ['added_tokens.json', { Rule: 7 }, 'warns'],
  ['config.json', { max_position_embeddings: 5 }, 'follows'],
  ['config.json', { pad_token_id: 3 }, 'ignores', 'padding changes no vector of a token'],
  [
    'config.json',
    { is_decoder: true, type_vocab_size: 1, hidden_act: 'relu', auto_map: {} },
    'ignores',
    'the graph is exported',
  ],
];

const CONFIG = 'config.json';
const GENERATION = 'generation_config.json';
const PROCESSOR = 'preprocessor_config.json';

const OF_LABELS: readonly Setting[] = [
  [CONFIG, { id2label: { 0: 'x', 1: 'y', 2: 'z' } }, 'follows'],
  [CONFIG, { problem_type: 'multi_label_classification' }, 'follows'],
  [CONFIG, { problem_type: 'regression' }, 'follows'],
  [CONFIG, { problem_type: 'single_label_classification' }, 'ignores', 'so it is without'],
  [CONFIG, { problem_type: 'of_tomorrow' }, 'refuses'],
  [CONFIG, { num_labels: 2, label2id: {} }, 'ignores', 'the graph and id2label state it'],
  [CONFIG, { function_to_apply: 'none' }, 'ignores', 'Python reads it of models without labels'],
  [
    CONFIG,
    { task_specific_params: { 'text-generation': { do_sample: true } } },
    'ignores',
    'only pipeline() reads it, and neither generate() nor vLLM',
  ],
];

const OF_ENTITIES: readonly Setting[] = [
  [CONFIG, { id2label: { 0: 'O', 1: 'a', 2: 'b', 3: 'c', 4: 'd' } }, 'follows'],
  [TOKENIZER, { add_bos_token: true, bos_token: '[MASK]' }, 'follows'],
  [CONFIG, { problem_type: 'regression' }, 'ignores', 'for labels of a whole text'],
];

/** Files that belong to another tokenizer than BERT's. */
const OF_TOKENIZERS: readonly (readonly [tokenizer: string, setting: object, refused: boolean])[] =
  [
    ['llama', { add_prefix_space: false }, true],
    ['llama', { add_prefix_space: true }, false],
    ['roberta', { add_prefix_space: true }, true],
    ['roberta', { trim_offsets: false }, true],
    ['roberta', { trim_offsets: true, add_prefix_space: false }, false],
  ];

const IDENTITY = 'torch.nn.modules.linear.Identity';

const OF_RERANKERS: readonly Setting[] = [
  [CONFIG, { sentence_transformers: { activation_fn: IDENTITY } }, 'warns'],
  [CONFIG, { sbert_ce_default_activation_function: IDENTITY }, 'warns'],
  [
    CONFIG,
    { sentence_transformers: { activation_fn: 'torch.nn.modules.activation.Sigmoid' } },
    'ignores',
    'so it is without',
  ],
  [ST, { activation_fn: IDENTITY }, 'warns'],
  [ST, { prompts: { own: 'a' }, default_prompt_name: 'own' }, 'refuses'],
  [ST, { model_type: 'SparseEncoder' }, 'refuses'],
];

/** `generate` of Python's transformers reads these without a call's own. */
const OF_ANSWERS: readonly Setting[] = [
  [GENERATION, { eos_token_id: 11 }, 'follows'],
  [GENERATION, { do_sample: true }, 'follows'],
  [GENERATION, { do_sample: true, temperature: 0.5 }, 'follows'],
  [GENERATION, { temperature: 0.5 }, 'ignores', 'Python reads it with do_sample'],
  [GENERATION, { top_k: 3 }, 'follows'],
  [GENERATION, { top_p: 0.5 }, 'follows'],
  [GENERATION, { min_p: 0.2 }, 'follows'],
  [GENERATION, { repetition_penalty: 1.5 }, 'follows'],
  [GENERATION, { max_new_tokens: 3 }, 'follows'],
  [GENERATION, { max_length: 20 }, 'follows'],
  [GENERATION, { top_p: 2 }, 'refuses'],
  [GENERATION, { min_p: 2 }, 'refuses'],
  [GENERATION, { do_sample: 'true' }, 'refuses'],
  [GENERATION, { do_sample: 1 }, 'refuses'],
  [GENERATION, { temperature: '0.5' }, 'refuses'],
  [GENERATION, { top_k: '3' }, 'refuses'],
  [GENERATION, { repetition_penalty: [1.5] }, 'refuses'],
  [GENERATION, { max_new_tokens: '3' }, 'refuses'],
  [GENERATION, { max_length: 20.5 }, 'refuses'],
  [GENERATION, { eos_token_id: [2, '0'] }, 'refuses'],
  [
    GENERATION,
    {
      no_repeat_ngram_size: 2,
      bad_words_ids: [[5]],
      suppress_tokens: [5],
      begin_suppress_tokens: [5],
      forced_decoder_ids: [[1, 5]],
      forced_bos_token_id: 5,
      forced_eos_token_id: 5,
      force_words_ids: [[5]],
      sequence_bias: [[[5], 1]],
      min_length: 4,
      min_new_tokens: 4,
      typical_p: 0.9,
      epsilon_cutoff: 0.1,
      eta_cutoff: 0.1,
      num_beams: 4,
      num_return_sequences: 2,
      penalty_alpha: 0.6,
      guidance_scale: 2,
      encoder_repetition_penalty: 2,
      exponential_decay_length_penalty: [1, 2],
      stop_strings: ['a'],
      max_time: 1,
      token_healing: true,
      watermarking_config: { bias: 1 },
      dola_layers: 'low',
      of_tomorrow: 1,
    },
    'warns',
  ],
  [
    GENERATION,
    { suppress_tokens: [], min_length: 0, num_beams: 1, typical_p: 1, stop_strings: null },
    'ignores',
    'with these values it asks for nothing',
  ],
  [
    GENERATION,
    { length_penalty: 2, early_stopping: true, num_beam_groups: 2, diversity_penalty: 1 },
    'ignores',
    'for several beams, and num_beams is checked',
  ],
  [
    GENERATION,
    { use_cache: false, cache_implementation: 'static', num_assistant_tokens: 9 },
    'ignores',
    'for memory and speed',
  ],
  [
    GENERATION,
    { pad_token_id: 5, bos_token_id: 5, decoder_start_token_id: 5 },
    'ignores',
    'no decoder alone begins or pads an answer',
  ],
  [CONFIG, { top_k: 3 }, 'ignores', 'generation_config.json stands in its place'],
];

/** The same without generation_config.json, or if it was made from config.json. */
const OF_ANSWERS_BY_CONFIG: readonly Setting[] = [
  [CONFIG, { top_k: 3 }, 'follows'],
  [CONFIG, { bad_words_ids: [[5]] }, 'warns'],
];

const OF_SPEECH: readonly Setting[] = [
  [GENERATION, { suppress_tokens: [] }, 'follows'],
  [GENERATION, { begin_suppress_tokens: Array.from({ length: 40 }, (_, i) => 311 + i) }, 'follows'],
  [GENERATION, { max_length: 8 }, 'follows'],
  [GENERATION, { language: 'german' }, 'follows'],
  [GENERATION, { language: '<|de|>' }, 'follows'],
  [GENERATION, { language: 'klingon' }, 'refuses'],
  [GENERATION, { task: 'translate' }, 'follows'],
  [GENERATION, { forced_decoder_ids: [[1, 303]] }, 'follows'],
  [GENERATION, { forced_decoder_ids: [[2, 305]] }, 'follows'],
  [GENERATION, { forced_decoder_ids: [[1, 7]] }, 'refuses'],
  [
    GENERATION,
    { forced_decoder_ids: [[1, null], [2, 306], [3, 310]] }, // prettier-ignore
    'ignores',
    'so it is without',
  ],
  [
    GENERATION,
    { alignment_heads: [[0, 1]], prev_sot_token_id: 5 },
    'ignores',
    'for times of words',
  ],
  [GENERATION, { num_beams: 5, no_repeat_ngram_size: 3, do_sample: true }, 'warns'],
  [CONFIG, { suppress_tokens: [7] }, 'ignores', 'generation_config.json stands in its place'],
  [PROCESSOR, { chunk_length: 2 }, 'refuses', 'the graph has windows of 4 s'],
  [PROCESSOR, { hop_length: 80 }, 'refuses', 'the same'],
  [PROCESSOR, { feature_size: 128 }, 'refuses', 'the graph has 80 bands'],
  [PROCESSOR, { hop_length: 80, chunk_length: 2 }, 'follows'],
  [PROCESSOR, { n_fft: 200 }, 'follows'],
  ['processor_config.json', { feature_extractor: { chunk_length: 4, n_fft: 200 } }, 'follows'],
  [PROCESSOR, { dither: 0.1 }, 'refuses'],
  [PROCESSOR, { padding_value: 1 }, 'refuses'],
  [PROCESSOR, { feature_extractor_type: 'SpeechT5FeatureExtractor' }, 'refuses'],
  [PROCESSOR, { mel_filters: [], n_samples: 1, nb_max_frames: 1 }, 'ignores', 'Python makes it'],
  [PROCESSOR, { of_tomorrow: 1 }, 'warns'],
];

const OF_IMAGES: readonly Setting[] = [
  [PROCESSOR, { resample: 3 }, 'follows'],
  [PROCESSOR, { image_mean: [0, 0, 0] }, 'follows'],
  [PROCESSOR, { image_std: [1, 1, 1] }, 'follows'],
  [PROCESSOR, { do_normalize: false }, 'follows'],
  [PROCESSOR, { do_rescale: false }, 'follows'],
  [PROCESSOR, { rescale_factor: 0.01 }, 'follows'],
  [PROCESSOR, { size: { shortest_edge: 40 }, do_center_crop: true, crop_size: 32 }, 'follows'],
  [PROCESSOR, { size: { longest_edge: 32 } }, 'refuses'],
  [PROCESSOR, { do_pad: true }, 'refuses'],
  [PROCESSOR, { do_flip_channel_order: true }, 'refuses'],
  [PROCESSOR, { image_processor_type: 'DonutImageProcessor' }, 'refuses'],
  [PROCESSOR, { do_convert_rgb: false }, 'ignores', 'an image becomes RGB in any case'],
  [PROCESSOR, { do_reduce_labels: true }, 'ignores', 'for training'],
  [PROCESSOR, { data_format: 'channels_first', device: null }, 'ignores', 'the graph reads it so'],
  [PROCESSOR, { do_align_long_axis: true }, 'warns'],
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
  const serving = await start(
    textEmbedding({ name: 'net', model: model({}), tooLong: 'cut', ...options }),
  );
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
  const serving = await start(reranker(files));
  const documents = ['A Rule Of The Rows', 'a rule of the rows'];
  const ranked = await serving.batchedRun({ query: 'what', documents });
  return new Set(ranked.map(({ score }) => score)).size;
}

/** The files of a tiny model; settings replace what its own files state. */
function filesWith(name: string, paths: readonly string[], file: string, content: object) {
  const isThere = paths.includes(file);
  const own = isThere ? (JSON.parse(readTiny(`${name}/${file}`).toString()) as object) : {};
  return tinyFiles(name, paths, { [file]: { ...own, ...content } });
}

async function start<Input, Output>(
  definition: ServingDefinition<Input, Output>,
): Promise<Serving<Input, Output>> {
  const serving = createServing(definition);
  started.push(serving);
  await serving.start();
  return serving;
}

const OF_TEXTS = [CONFIG, 'tokenizer.json', TOKENIZER, 'onnx/model.onnx'];
const WRITES = [CONFIG, 'tokenizer.json', TOKENIZER, 'onnx/model_gqa.onnx'];

/** A generator, and the rows that its thread gets. */
async function startRecorded(from: ModelFiles) {
  const definition = textGeneration({ name: 'net', model: { from, file: 'onnx/model_gqa.onnx' } });
  const given: unknown[] = [];
  const serving = await start({
    ...definition,
    async preprocess(input, context) {
      const prepared = await definition.preprocess!(input, context);
      given.push(prepared.batch);
      return prepared;
    },
  });
  return { serving, given };
}

/** What the model's thread gets for a prompt, and what it writes. */
async function written(from: ModelFiles): Promise<unknown> {
  const { serving, given } = await startRecorded(from);
  await serving.batchedRun({ messages: [{ role: 'user', content: 'a' }], maxTokens: 1, seed: 1 });
  const { text } = await serving.batchedRun({ prompt: 'the rows of a batch', seed: 1 });
  return [given.slice(-2), text];
}

const audio = Float32Array.from({ length: 16_000 }, (_, at) => 0.3 * Math.sin(at * at * 1e-5));

/** What each task makes of a repository with a setting. */
const TASKS: Readonly<
  Record<
    string,
    {
      readonly settings: readonly Setting[];
      readonly files: (file: string, content: object) => ModelFiles;
      readonly answer: (from: ModelFiles) => Promise<unknown>;
    }
  >
> = {
  textClassification: {
    settings: OF_LABELS,
    files: (...setting) => filesWith('classifier', OF_TEXTS, ...setting),
    async answer(from) {
      const own = { name: 'net', model: { from, isolation: 'none' as const } };
      return (await start(textClassification(own))).batchedRun('a rule');
    },
  },
  tokenClassification: {
    settings: OF_ENTITIES,
    files: (...setting) => filesWith('tagger', OF_TEXTS, ...setting),
    async answer(from) {
      const own = { name: 'net', model: { from, isolation: 'none' as const } };
      const serving = await start(tokenClassification({ ...own, ignoredLabels: [] }));
      return serving.batchedRun('a rule of the rows');
    },
  },
  rerank: {
    settings: OF_RERANKERS,
    files: (...setting) => filesWith('reranker', OF_TEXTS, ...setting),
    async answer(from) {
      const serving = await start(rerank({ name: 'net', model: { from, isolation: 'none' } }));
      return serving.batchedRun({ query: 'a rule', documents: ['the rows', 'the sky'] });
    },
  },
  textGeneration: {
    settings: OF_ANSWERS,
    files: (...setting) => filesWith('generator', [...WRITES, GENERATION], ...setting),
    answer: written,
  },
  'textGeneration without generation_config.json': {
    settings: OF_ANSWERS_BY_CONFIG,
    files: (...setting) => filesWith('generator', WRITES, ...setting),
    answer: written,
  },
  speechToText: {
    settings: OF_SPEECH,
    files: (...setting) =>
      filesWith(
        'speech',
        [
          CONFIG,
          GENERATION,
          PROCESSOR,
          'tokenizer.json',
          TOKENIZER,
          'onnx/encoder_model.onnx',
          'onnx/decoder_model_merged.onnx',
        ],
        ...setting,
      ),
    async answer(from) {
      return (await start(speechToText({ name: 'net', model: { from } }))).batchedRun(audio);
    },
  },
  imageClassification: {
    settings: OF_IMAGES,
    files: (...setting) => filesWith('vit', [CONFIG, PROCESSOR, 'onnx/model.onnx'], ...setting),
    async answer(from) {
      const own = { name: 'net', model: { from, isolation: 'none' as const } };
      const serving = await start(imageClassification(own));
      return serving.batchedRun(readTiny('images/photo.jpg'));
    },
  },
};

/** The names and the texts in a setting, by which messages call it. */
function namesIn(content: unknown): readonly string[] {
  if (typeof content !== 'object' || content === null) {
    return typeof content === 'string' ? [content] : [];
  }
  return Object.entries(content).flatMap(([key, value]) => [
    ...(Array.isArray(content) ? [] : [key]),
    ...namesIn(value),
  ]);
}

/** Compares an answer with a setting to the one without. */
async function expectSetting(
  [, content, does]: Setting,
  answer: Promise<unknown>,
  without: () => Promise<unknown>,
): Promise<void> {
  const warnings = recordWarnings();
  const names = namesIn(content);
  if (does === 'refuses') {
    const refused: unknown = await answer.catch((error: Error) => error);
    expect(refused).toBeInstanceOf(Error);
    expect(names.filter((name) => String(refused).includes(name))).not.toEqual([]);
    return;
  }
  const ours = await answer;
  // A warning names each key, or else the tokens that it is about.
  const named = names.filter((name) => warnings.join().includes(`"${name}"`));
  const keys = Object.keys(content);
  expect(named.length).toBeGreaterThanOrEqual(does === 'warns' ? keys.length : 0);
  expect(does === 'warns' ? [] : named).toEqual([]);
  const isSame = isDeepStrictEqual(ours, await without());
  expect(isSame).toBe(does !== 'follows');
}

const rowsOf = (settings: readonly Setting[]) =>
  settings.map((row) => [row[2], row[0], JSON.stringify(row[1]), row] as const);

describe.each(Object.entries(TASKS))('With %s, a setting of the files', (_, task) => {
  let usual: Promise<unknown> | undefined;

  it.each(rowsOf(task.settings))('[FQ6] A task %s what %s says: %s', async (...[, , , row]) => {
    const [file, content] = row;
    const answer = task.answer(task.files(file, content));
    await expectSetting(row, answer, () => (usual ??= task.answer(task.files(CONFIG, {}))));
  });
});

function vectorBy(pooling: object, dimensions?: number): Promise<number[]> {
  const options = { model: model({ [POOLING]: pooling }), normalize: false };
  return vectorOf(options, { text: 'A Rule Of The Rows', dimensions });
}

describe('A setting of the files of a repository', () => {
  it.each(rowsOf(OF_VECTORS))('[FQ6] A task %s what %s says: %s', async (...[, , , row]) => {
    const [file, content] = row;
    // A setting for prompts is seen in a call with one.
    const isOfPrompt = 'include_prompt' in content;
    const input = isOfPrompt ? { text: 'A Rule', prompt: 'own' } : undefined;
    const base: Record<string, object> = isOfPrompt ? { [ST]: PROMPTS } : {};
    const isOfMode = Object.keys(content).some((key) => key.startsWith('pooling_mode'));
    const own: Record<string, object> = {
      [CONFIG]: JSON.parse(readTiny('embedder/config.json').toString()) as object,
      [POOLING]: isOfMode ? {} : { pooling_mode_mean_tokens: true },
    };
    const files = {
      ...base,
      [file]: Array.isArray(content) ? content : { ...own[file], ...content },
    };
    const answer = vectorOf({ model: model(files) }, input);
    await expectSetting(row, answer, () => vectorOf({ model: model(base) }, input));
  });

  it.each(OF_TOKENIZERS)(
    '[FQ6] A tokenizer of the kind %s and the setting %j agree, or the start is refused',
    async (tokenizer, setting, isRefused) => {
      const json = readTiny(`tokenizers/${tokenizer}.json`);
      const answer = vectorOf({ model: model({ 'tokenizer.json': json, [TOKENIZER]: setting }) });
      const refused: unknown = await answer.catch((error: Error) => error);
      expect(refused instanceof Error).toBe(isRefused);
      expect(String(refused).includes(Object.keys(setting)[0]!)).toBe(isRefused);
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

  it('[FQ6] Several poolings give their vectors one behind the other, in the order of Python', async () => {
    const names = ['cls', 'max', 'mean', 'mean_sqrt_len_tokens', 'weightedmean', 'lasttoken'];
    const alone = await Promise.all(names.map((pooling_mode) => vectorBy({ pooling_mode })));
    const flags = {
      pooling_mode_lasttoken: true,
      pooling_mode_mean_tokens: true,
      pooling_mode_weightedmean_tokens: true,
      pooling_mode_cls_token: true,
      pooling_mode_mean_sqrt_len_tokens: true,
      pooling_mode_max_tokens: true,
    };
    expect(await vectorBy(flags, 48)).toEqual(alone.flat());
    expect(await vectorBy({ pooling_mode: ['mean', 'cls'] })).toEqual([...alone[2]!, ...alone[0]!]);
    await expect(vectorBy(flags, 8)).rejects.toThrow('gives vectors of 48');
  });

  it.each([
    ['mean-sqrt', 0, [9 / Math.sqrt(3), 12 / Math.sqrt(3)]],
    ['mean-sqrt', 1, [8 / Math.sqrt(2), 10 / Math.sqrt(2)]],
    ['weighted-mean', 0, [22 / 6, 28 / 6]],
    ['weighted-mean', 1, [21 / 5, 26 / 5]],
    ['max', 1, [5, 6]],
    ['mean', 1, [4, 5]],
  ] as const)('[FQ6] Pooling by %s leaves out %i tokens of a prompt', (mode, skipped, vector) => {
    const ours = pool(Float32Array.of(1, 2, 3, 4, 5, 6), 3, mode, skipped);
    expect([...ours]).toEqual([...Float32Array.from(vector)]);
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

  it('[FQ6] A call takes from generation_config.json what it leaves out, and its own value otherwise', async () => {
    const settings = {
      do_sample: true,
      temperature: 0.5,
      top_k: 3,
      top_p: 0.9,
      repetition_penalty: 1.5,
      max_new_tokens: 4,
    };
    const from = filesWith('generator', [...WRITES, GENERATION], GENERATION, settings);
    const { serving, given } = await startRecorded(from);
    const own = { temperature: 0, topK: 7, topP: 1, repetitionPenalty: 1, seed: 2, maxTokens: 9 };
    await serving.batchedRun({ prompt: 'the rows', seed: 1 });
    await serving.batchedRun({ prompt: 'the rows', ...own });

    const { maxTokens, ...sampling } = own;
    expect(given.slice(-2)).toMatchObject([
      {
        maxTokens: 4,
        sampling: { temperature: 0.5, topK: 3, topP: 0.9, repetitionPenalty: 1.5, seed: 1 },
      },
      { maxTokens, sampling },
    ]);
  });

  it('[22.65] The positions of GPT-2 are those of n_positions', async () => {
    const { max_position_embeddings: _, ...others } = JSON.parse(
      readTiny(`generator/${CONFIG}`).toString(),
    ) as Record<string, unknown>;
    const from = tinyFiles('generator', [...WRITES, GENERATION], {
      [CONFIG]: { ...others, model_type: 'gpt2', n_positions: 16 },
      [TOKENIZER]: {},
    });
    const { serving } = await startRecorded(from);
    await expect(serving.batchedRun('the '.repeat(20))).rejects.toThrow(
      'reads texts of at most 16 tokens',
    );
    const definition = textGeneration({
      name: 'net',
      model: { from, file: 'onnx/model_gqa.onnx' },
      maxTokens: 17,
    });
    await expect(createServing(definition).start()).rejects.toThrow(
      'maxTokens is 17, and the model of the given files reads at most 16 tokens',
    );
  });

  it('[22.63] A top_k of 0 in generation_config.json sets no limit, also beside a top_p', async () => {
    const settings = { do_sample: true, top_k: 0, top_p: 0.9 };
    const from = filesWith('generator', [...WRITES, GENERATION], GENERATION, settings);
    const { serving, given } = await startRecorded(from);
    await serving.batchedRun('the rows');
    expect(given.at(-1)).toMatchObject({ sampling: { topK: 2 ** 31, topP: 0.9 } });
  });

  it('[FQ6] Speech is written in the language and by the task that generation_config.json states, unless a call or the serving says otherwise', async () => {
    const { files } = TASKS['speechToText']!;
    const usual = await start(speechToText({ name: 'usual', model: { from: files(CONFIG, {}) } }));
    const from = files(GENERATION, { language: 'german', task: 'translate' });
    const stated = await start(speechToText({ name: 'stated', model: { from } }));
    const german = await usual.batchedRun({ audio, language: 'de', task: 'translate' });
    const english = await usual.batchedRun({ audio, language: 'en' });

    expect(await stated.batchedRun(audio)).toEqual(german);
    expect(await stated.batchedRun({ audio, language: 'en', task: 'transcribe' })).toEqual(english);
    expect(german).not.toEqual(english);
  });

  it('[FQ6] A reranker that states its scores warns of no activation in its files', async () => {
    const warnings = recordWarnings();
    const setting = { sentence_transformers: { activation_fn: IDENTITY } };
    const from = filesWith('reranker', OF_TEXTS, CONFIG, setting);
    await start(rerank({ name: 'net', model: { from, isolation: 'none' }, scores: 'raw' }));
    expect(warnings.join()).not.toContain('activation_fn');
  });

  it.each([
    ['{{ "no" if tools is none else "some" }} tools', 'no tools'],
    ['{{ "no" if documents is none else "some" }} documents', 'no documents'],
    ['pad{{ pad_token }} token', 'pad token'],
    ['of {{ cls_token }}', 'of the map'],
    ["{{ '_ the _'.strip('_') }}.", ' the .'],
    ["{{ ('_ the' ~ '_').lstrip('_') }}.", ' the_.'],
    ["{{ 'x> the <x'.rstrip('<x') }}.", 'x> the .'],
    ["{{ ' the '.strip() }}.", 'the.'],
    ["{{ '__'.strip('_') }}the.", 'the.'],
    ["{{ ' the '.strip(none) }}.", 'the.'],
    ["{% set text = messages[0].content %}{{ (text + 'the' + text).strip('_') }}.", ' the .'],
  ])('[FQ6] A chat template gets what Python gives it: %s', async (chatTemplate, asWritten) => {
    const paths = ['config.json', 'generation_config.json', 'tokenizer.json', 'onnx/model.onnx'];
    const from = tinyFiles('generator', paths, {
      'tokenizer_config.json': { pad_token: null },
      'special_tokens_map.json': { cls_token: { content: 'the map' } },
    });
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
    await serving.batchedRun({ prompt: asWritten, maxTokens: 1 });
    const [chat, prompt] = given.slice(-2) as readonly { readonly ids: readonly number[] }[];
    expect(chat!.ids.join()).toContain(prompt!.ids.slice(1).join());
  });
});

import { ServingLoadError } from '../../index.js';
import { type Fetching } from '../../doors/models.js';
import { isRecord } from '../../doors/options.js';
import { formatValue } from '../../doors/text.js';
import { readConfig, type Repository } from './repository.js';
import type { LoadingFiles } from './task-model.js';

/**
 * Settings of a model's files that Python's libraries obey. A task follows them, refuses to start,
 * or warns of unknown keys. `test/unit/tasks/settings-of-files.spec.ts` lists them all.
 */

/** Kinds of files; the first found is read, as by `Transformer` of sentence-transformers. */
const SENTENCE_FILES = [
  'bert',
  'roberta',
  'distilbert',
  'camembert',
  'albert',
  'xlm-roberta',
  'xlnet',
];

export const words = (text: string): readonly string[] => text.trim().split(/\s+/);

/** Keys that we follow or check, or that change no answer of an exported model. */
const KNOWN = {
  sentences: words(`max_seq_length do_lower_case tokenizer_args processor_kwargs
    processing_kwargs model_args model_kwargs config_args config_kwargs unpad_inputs transformer_task
    modality_config module_output_name`),
  pooling: words(`pooling_mode include_prompt word_embedding_dimension embedding_dimension
    pooling_mode_cls_token pooling_mode_max_tokens pooling_mode_mean_tokens
    pooling_mode_mean_sqrt_len_tokens pooling_mode_weightedmean_tokens pooling_mode_lasttoken`),
  model: words('__version__ prompts default_prompt_name similarity_fn_name model_type'),
  tokenizer: words(`tokenizer_class model_max_length truncation_side padding_side chat_template
    pad_token_type_id do_lower_case strip_accents tokenize_chinese_chars add_prefix_space
    split_special_tokens add_bos_token add_eos_token added_tokens_decoder additional_special_tokens
    extra_special_tokens model_specific_special_tokens
    backend clean_text clean_up_tokenization_spaces do_basic_tokenize errors extra_ids from_slow
    is_local keep_accents legacy legacy_behaviour max_length model_input_names name_or_path never_split
    pad_to_multiple_of padding processor_class remove_space response_schema sp_model_kwargs
    spaces_between_special_tokens special_tokens_map_file stride tokenizer_file trim_offsets
    truncation_strategy use_default_system_prompt use_fast vocab_file wordpieces_prefix
    local_files_only model_type unk_id vocab_type`),
  images: words(`image_processor_type feature_extractor_type do_resize size crop_size do_center_crop
    resample do_rescale rescale_factor do_normalize image_mean image_std do_pad do_flip_channel_order
    crop_pct default_to_square data_format
    _valid_processor_keys do_convert_rgb do_reduce_labels image_processor_class processor_class`),
  speech: words(`feature_extractor_type feature_size sampling_rate hop_length n_fft chunk_length
    padding_value padding_side dither
    do_normalize mel_filters n_samples nb_max_frames processor_class return_attention_mask`),
} satisfies Readonly<Record<string, readonly string[]>>;

/** Names of single tokens, such as `bos_token`. */
export const OF_A_TOKEN = /_token$/;

/** Warns of unknown keys, which Python may obey. */
export function warnOfUnknown(
  file: string,
  config: Record<string, unknown>,
  kind: keyof typeof KNOWN,
  { warn }: Fetching,
  more: readonly string[] = [],
): void {
  const known = new Set([...KNOWN[kind], ...more]);
  const unknown = Object.keys(config).filter(
    (key) =>
      !known.has(key) && config[key] !== null && !(kind === 'tokenizer' && OF_A_TOKEN.test(key)),
  );
  if (unknown.length > 0) {
    warn(
      `does not know ${unknown.map(formatValue).join(', ')} of ${file}: the answers differ from ` +
        "Python's if Python obeys it",
    );
  }
}

/**
 * Settings that prepare inputs, and their file: first processor_config.json, as in transformers 5.
 *
 * @throws ServingLoadError without such a file
 */
export async function preparation(
  repository: Repository,
  kind: 'images' | 'speech',
  fetching: Fetching,
): Promise<{ readonly file: string; readonly config: Record<string, unknown> }> {
  const processor = await readConfig(repository, 'processor_config.json', fetching);
  const nested = processor?.[kind === 'images' ? 'image_processor' : 'feature_extractor'];
  const file = isRecord(nested) ? 'processor_config.json' : 'preprocessor_config.json';
  const config = isRecord(nested) ? nested : await readConfig(repository, file, fetching);
  if (!config) {
    throw new ServingLoadError(
      `${repository.name} has no ${file}, which says how its ${kind} is prepared`,
    );
  }
  warnOfUnknown(file, config, kind, fetching);
  return { file, config };
}

/** Options of the tokenizer, by old and new names. */
const OF_TOKENIZER = ['tokenizer_args', 'processor_kwargs', 'processing_kwargs'];

export interface SentenceSettings {
  readonly maxTokens: unknown;
  /** Lowers texts before they become tokens. */
  readonly lowers: boolean;
}

/** @throws ServingLoadError for a setting that we don't have */
export async function sentenceSettings(
  repository: Repository,
  fetching: Fetching,
): Promise<SentenceSettings> {
  for (const kind of SENTENCE_FILES) {
    const file = `sentence_${kind}_config.json`;
    const config = await readConfig(repository, file, fetching);
    if (config) {
      warnOfUnknown(file, config, 'sentences', fetching);
      for (const key of OF_TOKENIZER) {
        const { [key]: options } = config;
        if (isRecord(options) && Object.keys(options).length > 0) {
          throw refused(repository, file, key, options);
        }
      }
      return { maxTokens: config['max_seq_length'], lowers: config['do_lower_case'] === true };
    }
  }
  return { maxTokens: undefined, lowers: false };
}

const MODEL_FILE = 'config_sentence_transformers.json';

/**
 * config_sentence_transformers.json, or an empty object.
 *
 * @throws ServingLoadError for a model of another kind
 */
export async function modelSettings(
  repository: Repository,
  fetching: Fetching,
  kind: 'SentenceTransformer' | 'CrossEncoder' = 'SentenceTransformer',
): Promise<Record<string, unknown>> {
  const config = (await readConfig(repository, MODEL_FILE, fetching)) ?? {};
  const more = kind === 'CrossEncoder' ? ['activation_fn', 'keep_in_fp32_modules'] : [];
  warnOfUnknown(MODEL_FILE, config, 'model', fetching, more);
  const { model_type: type = kind } = config;
  if (type !== kind) {
    throw refused(repository, MODEL_FILE, 'model_type', type);
  }
  return config;
}

/**
 * PyTorch class that a cross-encoder's files put over its logits, if any, as in `CrossEncoder` of
 * sentence-transformers.
 *
 * @throws ServingLoadError for a prompt, which the task doesn't have
 */
export async function activationIn({
  repository,
  config,
  fetching,
}: LoadingFiles): Promise<string | undefined> {
  const settings = await modelSettings(repository, fetching, 'CrossEncoder');
  const { default_prompt_name: prompt } = settings;
  if (typeof prompt === 'string') {
    throw refused(repository, MODEL_FILE, 'default_prompt_name', prompt);
  }
  const { sentence_transformers: own, sbert_ce_default_activation_function: older } = config;
  const stated =
    settings['activation_fn'] ?? (isRecord(own) ? own['activation_fn'] : null) ?? older;
  return typeof stated === 'string' ? stated : undefined;
}

export async function poolingSettings(
  repository: Repository,
  folder: string,
  fetching: Fetching,
): Promise<Record<string, unknown> | undefined> {
  const file = `${folder}/config.json`;
  const config = await readConfig(repository, file, fetching);
  if (config) {
    warnOfUnknown(file, config, 'pooling', fetching);
  }
  return config;
}

export function refused(
  { name }: Repository,
  file: string,
  key: string,
  value: unknown,
  beside = '',
): ServingLoadError {
  return new ServingLoadError(
    `${file} of ${name} has ${key} ${formatValue(value)}${beside}, which Python obeys and this ` +
      'task does not have; use another export, or correct the file',
  );
}

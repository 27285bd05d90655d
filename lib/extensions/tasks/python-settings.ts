import { ServingLoadError } from '../../index.js';
import { type Fetching, formatValue, isRecord } from '../../internal.js';
import { readConfig, type Repository } from './repository.js';
import type { TextFiles } from './text-tokenizer.js';

/**
 * Settings of a model's files that Python's libraries obey: a task follows them, refuses to start, or
 * warns of a key that it doesn't know. `test/unit/tasks/settings-of-files.spec.ts` lists them all.
 */

/** The first one that a repository has is read, as by `Transformer` of sentence-transformers. */
const SENTENCE_FILES = [
  'bert',
  'roberta',
  'distilbert',
  'camembert',
  'albert',
  'xlm-roberta',
  'xlnet',
];

/** The keys that we follow or check, and those that change no answer of an exported model. */
const KNOWN: Readonly<Record<string, readonly string[]>> = {
  sentences:
    'max_seq_length do_lower_case tokenizer_args processor_kwargs processing_kwargs model_args model_kwargs config_args config_kwargs transformer_task modality_config module_output_name unpad_inputs'.split(
      ' ',
    ),
  pooling: 'pooling_mode include_prompt word_embedding_dimension embedding_dimension'.split(' '),
  SentenceTransformer:
    '__version__ prompts default_prompt_name similarity_fn_name model_type'.split(' '),
  // The option `scores` takes the place of activation_fn.
  CrossEncoder:
    '__version__ prompts default_prompt_name model_type activation_fn keep_in_fp32_modules'.split(
      ' ',
    ),
};

/** Warns of keys that Python may obey and the task doesn't know. */
function warnOfUnknown(
  file: string,
  config: Record<string, unknown>,
  kind: keyof typeof KNOWN,
  { warn }: Fetching,
): void {
  const unknown = Object.keys(config).filter(
    (key) => !KNOWN[kind]!.includes(key) && !key.startsWith('pooling_mode_'),
  );
  if (unknown.length > 0) {
    warn(
      `does not know ${unknown.map(formatValue).join(', ')} of ${file}: the answers differ from ` +
        "Python's if sentence-transformers obeys it",
    );
  }
}

/** Options of the tokenizer, by their old and new names. */
const OF_TOKENIZER = ['tokenizer_args', 'processor_kwargs', 'processing_kwargs'];

/** What sentence-transformers reads about the texts of a model. */
export interface SentenceSettings {
  readonly maxTokens: unknown;
  /** Texts are put in lower case before they become tokens. */
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
  warnOfUnknown(MODEL_FILE, config, kind, fetching);
  const { model_type: type = kind } = config;
  if (type !== kind) {
    throw refused(repository, MODEL_FILE, 'model_type', type);
  }
  return config;
}

/** @throws ServingLoadError for a setting of a reranker that we don't have */
export async function checkReranker({ repository, fetching }: TextFiles): Promise<void> {
  const { default_prompt_name: prompt } = await modelSettings(repository, fetching, 'CrossEncoder');
  if (prompt !== undefined && prompt !== null) {
    throw refused(repository, MODEL_FILE, 'default_prompt_name', prompt);
  }
}

/** The configuration of the pooling; undefined without it. */
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

/** BERT's own keys in tokenizer_config.json, and those of its normalizer in tokenizer.json. */
const OF_NORMALIZER: Readonly<Record<string, string>> = {
  do_lower_case: 'lowercase',
  strip_accents: 'strip_accents',
  tokenize_chinese_chars: 'handle_chinese_chars',
};

/**
 * Python's fast tokenizers change what tokenizer.json says by tokenizer_config.json.
 *
 * @throws ServingLoadError if the two differ
 */
export function checkTokenizer({ repository, tokenizerJson, ofTokenizer }: TextFiles): void {
  const name = String(ofTokenizer['tokenizer_class']);
  const { normalizer, pre_tokenizer: words } = tokenizerJson;
  const file = 'tokenizer_config.json';
  if (isRecord(normalizer) && normalizer['type'] === 'BertNormalizer') {
    for (const [key, own] of Object.entries(OF_NORMALIZER)) {
      const stated = ofTokenizer[key];
      if (
        /^(Distil)?Bert|^Electra|^MPNet/.test(name) &&
        stated !== undefined &&
        (stated ?? null) !== (normalizer[own] ?? null)
      ) {
        throw refused(
          repository,
          file,
          key,
          stated,
          ` beside ${own} ${formatValue(normalizer[own])} in tokenizer.json`,
        );
      }
    }
  }
  const { add_prefix_space: prefix, do_lower_case: lowers } = ofTokenizer;
  if (
    /^(DebertaV2|Albert)/.test(name) &&
    typeof lowers === 'boolean' &&
    lowers !== hasLowercase(normalizer)
  ) {
    const beside = ` beside a normalizer that ${lowers ? 'keeps' : 'lowers'} cases in tokenizer.json`;
    throw refused(repository, file, 'do_lower_case', lowers, beside);
  }
  const isOther =
    isRecord(words) &&
    typeof words['add_prefix_space'] === 'boolean' &&
    typeof prefix === 'boolean' &&
    words['add_prefix_space'] !== prefix;
  if (isOther) {
    throw refused(
      repository,
      file,
      'add_prefix_space',
      prefix,
      ` beside ${String(!prefix)} in tokenizer.json`,
    );
  }
}

function hasLowercase(normalizer: unknown): boolean {
  const { type, normalizers: parts } = isRecord(normalizer) ? normalizer : {};
  return type === 'Lowercase' || (Array.isArray(parts) && parts.some(hasLowercase));
}

function refused(
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

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
    'max_seq_length do_lower_case tokenizer_args model_args config_args transformer_task modality_config module_output_name unpad_inputs'.split(
      ' ',
    ),
  pooling: 'pooling_mode include_prompt word_embedding_dimension embedding_dimension'.split(' '),
  model: '__version__ prompts default_prompt_name similarity_fn_name model_type'.split(' '),
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
      const { tokenizer_args: args } = config;
      if (isRecord(args) && Object.keys(args).length > 0) {
        throw refused(repository, file, 'tokenizer_args', args);
      }
      return { maxTokens: config['max_seq_length'], lowers: config['do_lower_case'] === true };
    }
  }
  return { maxTokens: undefined, lowers: false };
}

/** config_sentence_transformers.json, or an empty object. */
export async function modelSettings(
  repository: Repository,
  fetching: Fetching,
): Promise<Record<string, unknown>> {
  const file = 'config_sentence_transformers.json';
  const config = (await readConfig(repository, file, fetching)) ?? {};
  warnOfUnknown(file, config, 'model', fetching);
  const { model_type: type = 'SentenceTransformer' } = config;
  if (type !== 'SentenceTransformer') {
    throw refused(repository, file, 'model_type', type);
  }
  return config;
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
  const { add_prefix_space: prefix } = ofTokenizer;
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

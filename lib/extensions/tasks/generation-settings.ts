import { type Fetching } from '../../doors/models.js';
import { isRecord } from '../../doors/options.js';
import { formatValue } from '../../doors/text.js';
import { words } from './python-settings.js';
import { readConfig, type Repository } from './repository.js';

/** Defaults of answers, from generation_config.json. */
export interface AnswerDefaults {
  readonly temperature: number;
  readonly topK: number | undefined;
  readonly topP: number;
  readonly minP: number;
  readonly repetitionPenalty: number;
  readonly maxNewTokens: number | undefined;
  /** Most tokens of a prompt and its answer. */
  readonly maxLength: number | undefined;
}

/** Keys that change no answer, or only with several beams or another model's drafts. */
const IGNORED = words(`
  transformers_version _from_model_config _commit_hash _original_object_hash trust_remote_code
  bos_token_id pad_token_id decoder_start_token_id
  use_cache cache_implementation cache_config return_legacy_cache prefill_chunk_size low_memory
  compile_config disable_compile remove_invalid_values renormalize_logits
  early_stopping length_penalty num_beam_groups diversity_penalty
  output_attentions output_hidden_states output_scores output_logits return_dict_in_generate
  is_assistant num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold
  assistant_early_exit assistant_lookbehind target_lookbehind prompt_lookup_num_tokens
  max_matching_ngram_size`);

const OF_ANSWERS = words(`
  eos_token_id do_sample temperature top_k top_p repetition_penalty max_new_tokens
  min_length min_new_tokens max_time stop_strings num_beams num_return_sequences penalty_alpha
  dola_layers min_p top_h typical_p epsilon_cutoff eta_cutoff encoder_repetition_penalty
  no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids force_words_ids constraints
  forced_bos_token_id forced_eos_token_id exponential_decay_length_penalty suppress_tokens
  begin_suppress_tokens forced_decoder_ids sequence_bias token_healing guidance_scale
  watermarking_config`);

/** Keys without effect if 1; others if 0, false, null or empty. */
const NOTHING_IF_ONE = words(
  'num_beams num_return_sequences typical_p encoder_repetition_penalty guidance_scale',
);

function asksNothing(key: string, value: unknown): boolean {
  const isEmpty = (Array.isArray(value) || isRecord(value)) && Object.keys(value).length === 0;
  const isNothing = value === null || value === false || value === 0 || isEmpty;
  return isNothing || (value === 1 && NOTHING_IF_ONE.includes(key));
}

/** Warns of keys that Python may obey, and the task doesn't. */
export function warnOfUnfollowed(
  settings: Record<string, unknown>,
  followed: readonly string[],
  { warn }: Fetching,
): void {
  const known = new Set([...IGNORED, ...followed]);
  const others = Object.entries(settings).filter(
    ([key, value]) => !known.has(key) && !asksNothing(key, value),
  );
  if (others.length > 0) {
    const named = others.map(([key, value]) => `${formatValue(key)} (${formatValue(value)})`);
    warn(
      `does not follow ${named.join(', ')} of generation_config.json: its answers differ from ` +
        "Python's if Python obeys it",
    );
  }
}

const FOLLOWED = words(
  'eos_token_id do_sample temperature top_k top_p min_p repetition_penalty max_new_tokens max_length',
);

/**
 * Reads generation_config.json as `generate` of Python's transformers. Without the file, or if it
 * was made from config.json, the keys of config.json count, too.
 */
export async function generationSettings(
  repository: Repository,
  config: Record<string, unknown>,
  fetching: Fetching,
): Promise<Record<string, unknown>> {
  const own = await readConfig(repository, 'generation_config.json', fetching);
  const isOfModel = own === undefined || own['_from_model_config'] === true;
  const ofModel = OF_ANSWERS.filter((key) => isOfModel && config[key] !== undefined);
  const settings = { ...Object.fromEntries(ofModel.map((key) => [key, config[key]])), ...own };
  warnOfUnfollowed(settings, FOLLOWED, fetching);
  return settings;
}

/**
 * Missing or null settings ask for nothing.
 *
 * @throws the error of `refuse` for a setting of another type
 */
export function answerDefaultsIn(
  settings: Record<string, unknown>,
  refuse: (what: string) => Error,
): AnswerDefaults {
  const numberOf = (key: string, allowed = 'a number', check = isNumber): number | undefined => {
    const value = settings[key] ?? undefined;
    if (value !== undefined && !check(value)) {
      throw refuse(`was given ${key} ${formatValue(value)}; allowed is ${allowed}`);
    }
    return value;
  };
  const countOf = (key: string): number | undefined =>
    numberOf(key, 'a whole number of 1 or more', isCount);
  const samples = settings['do_sample'] ?? false;
  if (typeof samples !== 'boolean') {
    throw refuse(`was given do_sample ${formatValue(samples)}; allowed is true or false`);
  }
  const temperature = numberOf('temperature') ?? 1;
  const topK = numberOf('top_k');
  return {
    temperature: samples ? temperature : 0,
    topK: topK === 0 ? NO_LIMIT : topK,
    topP: numberOf('top_p') ?? 1,
    minP: numberOf('min_p') ?? 0,
    repetitionPenalty: numberOf('repetition_penalty') ?? 1,
    maxNewTokens: countOf('max_new_tokens'),
    maxLength: countOf('max_length'),
  };
}

/** More tokens than any vocabulary has. */
export const NO_LIMIT = 2 ** 31;

function isNumber(value: unknown): value is number {
  return typeof value === 'number';
}

function isCount(value: unknown): value is number {
  return Number.isInteger(value) && Number(value) > 0;
}

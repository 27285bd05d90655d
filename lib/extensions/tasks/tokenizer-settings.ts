import { type Fetching } from '../../doors/models.js';
import { isRecord } from '../../doors/options.js';
import { formatValue } from '../../doors/text.js';
import { addedTokensIn } from './added-tokens.js';
import { OF_A_TOKEN, refused, warnOfUnknown } from './python-settings.js';
import { readConfig, type Repository } from './repository.js';
import type { TextFiles } from './text-tokenizer.js';

/**
 * tokenizer_config.json, with special_tokens_map.json's tokens if it has no list of tokens, as in
 * Python.
 */
export async function tokenizerSettings(
  repository: Repository,
  fetching: Fetching,
): Promise<Record<string, unknown>> {
  const file = 'tokenizer_config.json';
  const config = (await readConfig(repository, file, fetching)) ?? {};
  warnOfUnknown(file, config, 'tokenizer', fetching);
  if (config['added_tokens_decoder'] !== undefined) {
    return config;
  }
  const map = (await readConfig(repository, 'special_tokens_map.json', fetching)) ?? {};
  const added = (await readConfig(repository, 'added_tokens.json', fetching)) ?? {};
  const decoder = Object.keys(added).map((content) => [added[content], { content }] as const);
  return {
    ...config,
    ...map,
    ...(decoder.length > 0 && { added_tokens_decoder: Object.fromEntries(decoder) as unknown }),
  };
}

/** Text of a token, which files give as text or object. */
export function contentOf(token: unknown): string | undefined {
  const content = isRecord(token) ? token['content'] : token;
  return typeof content === 'string' ? content : undefined;
}

const FLAGS = ['lstrip', 'rstrip', 'single_word', 'normalized', 'special'];

/** Warns of tokens that Python adds to tokenizer.json's, or whose flags it changes. */
function warnOfTokens({ tokenizerJson, ofTokenizer, fetching }: TextFiles): void {
  const { added_tokens: given } = tokenizerJson;
  const own = new Map(
    (Array.isArray(given) ? given : []).map((token) => [contentOf(token), token as unknown]),
  );
  const {
    added_tokens_decoder: decoder,
    additional_special_tokens,
    extra_special_tokens,
  } = ofTokenizer;
  const named = Object.keys(ofTokenizer).filter((key) => OF_A_TOKEN.test(key));
  const others = [
    ...named.map((key) => ofTokenizer[key]),
    ...[additional_special_tokens ?? []].flat(),
    ...(isRecord(extra_special_tokens)
      ? Object.values(extra_special_tokens)
      : [extra_special_tokens ?? []].flat()),
  ].map((token) => contentOf(token));
  const differs = (token: unknown): boolean => {
    const found = own.get(contentOf(token));
    const has = (flag: string): boolean =>
      isRecord(token) &&
      token[flag] !== undefined &&
      isRecord(found) &&
      found[flag] !== token[flag];
    return FLAGS.some(has);
  };
  const listed = isRecord(decoder) ? Object.values(decoder) : [];
  const unlike = new Set([
    ...[...listed.map(contentOf), ...others].filter((text) => text !== undefined && !own.has(text)),
    ...listed.filter(differs).map(contentOf),
  ]);
  if (unlike.size > 0) {
    fetching.warn(
      `takes its tokens from tokenizer.json, and Python adds or changes ${[...unlike].map(formatValue).join(', ')} ` +
        "by the tokenizer's other files: texts with them have other tokens",
    );
  }
}

/**
 * Adds the tokens that `add_bos_token` and `add_eos_token` ask for, unless tokenizer.json has them,
 * as `update_post_processor` of Python's transformers.
 */
export function withFrame(
  tokenizerJson: Record<string, unknown>,
  ofTokenizer: Record<string, unknown>,
): Record<string, unknown> {
  const { add_bos_token: begins, add_eos_token: ends } = ofTokenizer;
  const [bos, eos] = [contentOf(ofTokenizer['bos_token']), contentOf(ofTokenizer['eos_token'])];
  const frame = JSON.stringify(tokenizerJson['post_processor'] ?? null);
  const has = (token: string | undefined): boolean => frame.includes(JSON.stringify(token));
  const isOther = (asked: unknown, token: string | undefined): boolean =>
    typeof asked === 'boolean' && token !== undefined && asked !== has(token);
  if (!isOther(begins, bos) && !isOther(ends, eos)) {
    return tokenizerJson;
  }
  const before = begins === true && bos !== undefined ? [bos] : [];
  const behind = ends === true && eos !== undefined ? [eos] : [];
  const part = (id: string, type: number) => [
    ...before.map((token) => ({ SpecialToken: { id: token, type_id: type } })),
    { Sequence: { id, type_id: type } },
    ...behind.map((token) => ({ SpecialToken: { id: token, type_id: type } })),
  ];
  const tokens = [...before, ...behind].map(
    (token) => [token, { id: token, ids: [idIn(tokenizerJson, token)], tokens: [token] }] as const,
  );
  return {
    ...tokenizerJson,
    post_processor: {
      type: 'TemplateProcessing',
      single: part('A', 0),
      pair: [...part('A', 0), ...part('B', 1)],
      special_tokens: Object.fromEntries(tokens) as unknown,
    },
  };
}

/** Number of a token in tokenizer.json. */
export function idIn(tokenizerJson: Record<string, unknown>, text: string | undefined): unknown {
  const { model } = tokenizerJson;
  const vocabulary = isRecord(model) && isRecord(model['vocab']) ? model['vocab'] : {};
  return (
    addedTokensIn(tokenizerJson).find(({ content }) => content === text)?.['id'] ??
    vocabulary[String(text)]
  );
}

/** BERT's keys in tokenizer_config.json, and its normalizer's in tokenizer.json. */
const OF_NORMALIZER: Readonly<Record<string, string>> = {
  do_lower_case: 'lowercase',
  strip_accents: 'strip_accents',
  tokenize_chinese_chars: 'handle_chinese_chars',
};

/**
 * Refuses settings by which Python's fast tokenizers would change tokenizer.json.
 *
 * @throws ServingLoadError if the two differ
 */
export function checkTokenizer(files: TextFiles): void {
  const { repository, config, tokenizerJson, ofTokenizer } = files;
  const { tokenizer_class: ofModel, model_type: type } = config;
  // AutoTokenizer chooses the class so.
  const name = String(ofTokenizer['tokenizer_class'] ?? ofModel ?? type);
  const { normalizer, pre_tokenizer: words, post_processor: processor } = tokenizerJson;
  const file = 'tokenizer_config.json';
  if (isRecord(normalizer) && normalizer['type'] === 'BertNormalizer') {
    for (const [key, own] of Object.entries(OF_NORMALIZER)) {
      const stated = ofTokenizer[key];
      if (
        /^(Distil)?Bert|^Electra|^MPNet/i.test(name) &&
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
  const { add_prefix_space: prefix, split_special_tokens: splits } = ofTokenizer;
  if (splits === true) {
    throw refused(repository, file, 'split_special_tokens', splits);
  }
  for (const [key, part] of [
    ['add_prefix_space', words],
    ['trim_offsets', processor],
  ] as const) {
    const [own, stated] = [isRecord(part) ? part[key] : undefined, ofTokenizer[key]];
    if (typeof own === 'boolean' && typeof stated === 'boolean' && own !== stated) {
      throw refused(repository, file, key, stated, ` beside ${String(own)} in tokenizer.json`);
    }
  }
  const prepends = /"Prepend"|"prepend_scheme":"(always|first)"/;
  if (prefix === false && prepends.test(JSON.stringify([normalizer, words]))) {
    const beside = ' beside a tokenizer.json that puts a space before a text';
    throw refused(repository, file, 'add_prefix_space', prefix, beside);
  }
  const { do_lower_case: lowers } = ofTokenizer;
  if (
    /^(DebertaV2|deberta-v2|Albert)/i.test(name) &&
    typeof lowers === 'boolean' &&
    lowers !== hasLowercase(normalizer)
  ) {
    const beside = ` beside a normalizer that ${lowers ? 'keeps' : 'lowers'} cases in tokenizer.json`;
    throw refused(repository, file, 'do_lower_case', lowers, beside);
  }
  warnOfTokens(files);
}

function hasLowercase(normalizer: unknown): boolean {
  const { type, normalizers: parts } = isRecord(normalizer) ? normalizer : {};
  return type === 'Lowercase' || (Array.isArray(parts) && parts.some(hasLowercase));
}
